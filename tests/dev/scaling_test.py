"""tools/scaling.py: its models have the sizes that they are named for, its formulas are those of docs/scaling.md, and the tables there are what it prints."""
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import scaling  # noqa: E402

HOST = dict(memory_gb_per_s=100.0, memory_share=1.0, tera_operations=10.0, arithmetic_share=1.0, latency_us=10.0, message_us=1.0, network_gb_per_s=1.0)


class Scaling(unittest.TestCase):
    def test_models_have_their_published_sizes(self):
        for name, billions, active in (("qwen3-235b-a22b", 235, 22), ("deepseek-v3", 671, 37)):
            self.assertAlmostEqual(scaling.weights(scaling.MODELS[name]) / 1e9, billions, delta=0.01 * billions)
            self.assertAlmostEqual(scaling.active(scaling.MODELS[name]) / 1e9, active, delta=0.05 * active)

    def test_a_sum_of_one_two_and_more_hosts(self):
        self.assertEqual(scaling.sum_us(1, 1000, HOST), 0)
        self.assertAlmostEqual(scaling.sum_us(2, 1000, HOST), 10 + 1 + 1)
        self.assertAlmostEqual(scaling.sum_us(4, 1000, HOST), 2 * (10 + 3) + 1.5)

    def test_one_host_reads_what_is_active_and_sends_nothing(self):
        model = scaling.MODELS["qwen3-235b-a22b"]
        reading, sums, rest = scaling.decode(model, 1, 1, 0, 8, HOST)
        self.assertEqual((sums, rest), (0, 0))
        self.assertAlmostEqual(reading, scaling.active(model) / 100e9 * 1e6, delta=1)

    def test_the_busiest_of_experts(self):
        self.assertEqual(scaling.busiest(8, 8, 4, 1), 2)    # all of them, two a rank
        self.assertEqual(scaling.busiest(8, 1, 4, 1), 1)
        self.assertGreater(scaling.busiest(128, 8, 8, 1), 1.5)  # not one on each

    def test_the_page_has_the_tables(self):
        with open(os.path.join(ROOT, "docs", "scaling.md"), encoding="utf-8") as file:
            self.assertIn(scaling.all_tables(), file.read())


if __name__ == "__main__":
    unittest.main()
