"""The README's table of what works is what the program says; its commands and links exist."""
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("INFLIGHT_BINARY", str(ROOT / "build/release/inflight"))


class Readme(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / "README.md").read_text()

    def test_supported_table_is_the_programs(self):
        said = re.search(r"<!-- supported -->\n(.*?)<!-- /supported -->", self.text, re.S)[1].strip()
        says = subprocess.run([BINARY, "inspect", "--supported"], check=True, capture_output=True, text=True).stdout.strip()
        self.assertEqual(said, says, "paste the output of `inflight inspect --supported` between the markers of README.md")

    def test_links_and_paths_exist(self):
        for path in re.findall(r"\]\(([^)#:]+)\)", self.text) + re.findall(r"`(docs/[a-z_./-]+)`", self.text):
            self.assertTrue((ROOT / path).exists(), path)

    def test_commands_are_commands(self):
        known = subprocess.run([BINARY, "--help"], check=True, capture_output=True, text=True).stdout
        used = set(re.findall(r"build/release/inflight ([a-z]+)", self.text))
        self.assertGreaterEqual(len(used), 5)
        for command in used:
            self.assertRegex(known, rf"(?m)^  {command} ")


if __name__ == "__main__":
    unittest.main()
