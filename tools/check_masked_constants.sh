#!/bin/bash
# No kernel may load a constant under a mask: where the mask is off and nothing else ever touched the constant's page, the page stays unmapped and
# AVX-512 takes a microcode assist of hundreds of cycles each time, in some processes and not in others (src/kernels/divisor.inl).
# Usage: tools/check_masked_constants.sh BINARY
set -euo pipefail
binary=${1:?which program? tools/check_masked_constants.sh build/release/inflight}
code=$(objdump -d --no-show-raw-insn "$binary")
grep -q '%zmm' <<<"$code" || { echo "$binary has no AVX-512 code to look at"; exit 1; }
found=$(awk '/^[0-9a-f]+ </ {where = $2} /\(%rip\),.*\{%k[1-7]\}/ {print where, $0}' <<<"$code" | c++filt)
if [ -n "$found" ]; then
  echo "constants loaded under a mask; choose among integers, or keep the constant in a register:"
  echo "$found"
  exit 1
fi
echo "$binary: no constant is loaded under a mask"
