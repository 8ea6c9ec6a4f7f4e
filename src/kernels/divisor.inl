// What codes are divided by: the scale, or infinity for 0, which makes every code 0 (absmax 0, or one that underflows).
// Infinity waits in a register: left to themselves compilers make the choice a masked load of the constant, and where the mask is off and nothing else
// ever touched the constant's page, that page stays unmapped and AVX-512 takes a microcode assist of hundreds of cycles at each such load.
#pragma once

LANES_INLINE float divisor(float scale) {
  float infinity = __builtin_inff();
  __asm__("" : "+x"(infinity));
  return scale == 0 ? infinity : scale;
}
