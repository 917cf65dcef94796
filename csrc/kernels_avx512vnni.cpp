#define SLIPSTREAM_AVX512
#define SLIPSTREAM_LEVEL avx512vnni
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_avx512vnni = slipstream::avx512vnni::table("avx512vnni");
