#define SLIPSTREAM_AVX2
#define SLIPSTREAM_LEVEL avx2
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_avx2 = slipstream::avx2::table("avx2");
