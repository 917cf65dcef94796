#define SLIPSTREAM_AVX512
#define SLIPSTREAM_LEVEL avx512
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_avx512 = slipstream::avx512::table("avx512");
