#define SLIPSTREAM_NEON
#define SLIPSTREAM_LEVEL neondot
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_neondot = slipstream::neondot::table("neondot");
