#define SLIPSTREAM_AVX2
#define SLIPSTREAM_LEVEL avxvnni
#include "kernels_impl.h"
const slipstream::Kernels slipstream::kernels_avxvnni = slipstream::avxvnni::table("avxvnni");
