#!/bin/bash
# Code compiled for a stronger instruction set must not be what the linker picks for everyone: the object files of
# src/kernels/isa/<isa>/ may define no weak symbol (inline functions and templates of shared headers), and export
# nothing but this ISA's tables. Checked at -O0, where nothing hides by inlining. Usage: tools/check_isa_leaks.sh [compiler]
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${1:-${CXX:-clang++-19}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
checked=0
while IFS= read -r line; do
  isa=$(sed -E 's/^ISA\(([a-z0-9_]+),.*/\1/' <<<"$line")
  read -ra flags <<<"$(sed -E 's/^ISA\([a-z0-9_]+, *"([^"]*)".*/\1/' <<<"$line")"
  [ ${#flags[@]} -gt 0 ] || continue # the baseline's symbols run everywhere
  for source in src/kernels/isa/"$isa"/*.cc; do
    object=$work/$isa-$(basename "$source" .cc).o
    "$compiler" -std=gnu++23 -O0 -march=x86-64-v2 -Wno-psabi "${flags[@]}" -Isrc -c "$source" -o "$object"
    checked=$((checked + 1))
    weak=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WwVvu]$/ && $3 !~ /^DW[.]ref[.]/' || true) # DW.ref: the runtime's own, data
    if [ -n "$weak" ]; then
      echo "$source: weak symbols compiled with ${flags[*]}:"
      echo "$weak"
      bad=1
    fi
    other=$(nm -C --defined-only --extern-only "$object" | cut -d' ' -f3- | grep -vE "^DW[.]ref[.]|^inflight::kernels::(table|load|linear|vector|latent|roofline|lut4|offsets|fp8|fp8_attention)_$isa$" || true)
    if [ -n "$other" ]; then
      echo "$source: exports more than its table:"
      echo "$other"
      bad=1
    fi
  done
done < <(grep -E '^ISA\(' src/kernels/isa.def)
[ "$checked" -gt 0 ] || { echo "no ISA sources found"; exit 1; }
[ $bad -eq 0 ] && echo "$checked ISA objects: no weak symbol, no export but the tables"
exit $bad
