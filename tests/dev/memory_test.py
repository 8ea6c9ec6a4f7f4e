"""Loading in flight stays within its promise: anonymous memory peaks at the final weights + 160 MB, and both loaders answer alike.

The checkpoint is of the Qwen3-0.6B shape cut to four layers (0.44 GB of BF16): large enough that a loader which keeps the BF16 copy
breaks the bound, which the second test shows.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("INFLIGHT_BINARY", str(ROOT / "build/release/inflight"))
MODEL = ROOT / "build/models/qwen3-0.6b-4-layers"
ALLOWED = 160e6


def bench(quantization, road):
    out = subprocess.run([BINARY, "bench", str(MODEL), "--quantization", quantization, "--load-choices", road, "--prompt-tokens", "16",
                          "--decode-tokens", "4", "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)["load"]


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not MODEL.exists():
            python = os.environ.get("INFLIGHT_PYTHON", sys.executable)
            subprocess.run([python, str(ROOT / "tools/make_checkpoint.py"), "qwen3-0.6b", str(MODEL), "--layers", "4"], check=True, capture_output=True)

    def test_streaming_peaks_at_the_weights_and_160_mb(self):
        for quantization in ("wint8", "wint4-g128", "wint4-g32"):
            with self.subTest(quantization):
                load = bench(quantization, "default_v1")
                self.assertGreater(load["weight_bytes"], 0.2 * load["source_bytes"])
                self.assertLessEqual(load["peak_anon_bytes"], load["weight_bytes"] + ALLOWED)

    def test_the_plain_road_breaks_that_bound_so_the_measurement_sees_it(self):
        load = bench("wint4-g128", "default")
        self.assertGreater(load["peak_anon_bytes"], load["weight_bytes"] + ALLOWED)

    def test_both_roads_answer_token_by_token_alike(self):
        for quantization in ("wint8", "wint4-g128"):
            answers = []
            for road in ("default_v1", "default"):
                out = subprocess.run([BINARY, "generate", str(MODEL), "--raw", "-p", "In the beginning", "--quantization", quantization, "--load-choices", road,
                                      "--temperature", "0", "--max-tokens", "24", "--ignore-eos", "--json"], check=True, capture_output=True, text=True)
                answers.append(json.loads(out.stdout)["ids"])
            self.assertEqual(len(answers[0]), 24)
            self.assertEqual(answers[0], answers[1])


if __name__ == "__main__":
    unittest.main()
