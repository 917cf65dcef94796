#define SLIPSTREAM_PORTABLE
#define SLIPSTREAM_LEVEL portable
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_portable = slipstream::portable::table("portable");
