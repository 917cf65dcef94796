#define SLIPSTREAM_NEON
#define SLIPSTREAM_LEVEL neon
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_neon = slipstream::neon::table("neon");
