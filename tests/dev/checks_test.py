"""Each static check can fail: every rule is shown a file that breaks it and one that does not."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


class Checks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run_check(self, name):
        """(exit status, standard output, standard error)"""
        done = subprocess.run([sys.executable, str(TOOLS / f"check_{name}.py"), str(self.root)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def assert_finds(self, check, *starts):
        """The check fails with exactly these findings, each given by how its row starts."""
        status, out, err = self.run_check(check)
        rows = out.splitlines()
        self.assertEqual(status, 1, out + err)
        self.assertEqual(len(rows), len(starts), out)
        for row, start in zip(rows, starts):
            self.assertTrue(row.startswith(start), f"{row!r} does not start with {start!r}")

    def assert_clean(self, check):
        status, out, err = self.run_check(check)
        self.assertEqual((status, out), (0, ""), err)


class Layers(Checks):
    TABLE = "# room : may include\nbase :\ntensor : base\nloader : base\n"

    def setUp(self):
        super().setUp()
        self.write("src/layers.txt", self.TABLE)
        self.write("src/base/a.h", "")
        self.write("src/tensor/t.h", '#include "base/a.h"\n#include <vector>\n')

    def test_allowed_includes_pass(self):
        self.assert_clean("layers")

    def test_an_include_upwards_is_found(self):
        self.write("src/base/b.cc", '#include "base/a.h"\n  #  include "tensor/t.h"\n')
        self.assert_finds("layers", "src/base/b.cc:2: base/ may not include tensor/ (allowed: nothing)")

    def test_an_include_sideways_is_found(self):
        self.write("src/loader/l.inl", '#include "tensor/t.h"\n')
        self.assert_finds("layers", "src/loader/l.inl:1: loader/ may not include tensor/ (allowed: base)")

    def test_a_row_that_names_a_later_row_is_found(self):
        self.write("src/layers.txt", "base : tensor\ntensor : base\n")
        status, out, _ = self.run_check("layers")
        self.assertEqual(status, 1)
        self.assertIn("src/layers.txt:1: 'base' names 'tensor', which is not a row above it", out)

    def test_a_room_without_a_row_is_found(self):
        self.write("src/kitchen/k.cc", "")
        self.assert_finds("layers", "src/kitchen/k.cc:1: src/kitchen/ has no row")

    def test_a_header_that_is_not_there_is_found(self):
        self.write("src/tensor/u.cc", '#include "base/gone.h"\n')
        self.assert_finds("layers", "src/tensor/u.cc:1: there is no src/base/gone.h")

    def test_an_include_that_hides_its_room_is_found(self):
        self.write("src/tensor/u.cc", '#include "t.h"\n#include "../base/a.h"\n#include <base/a.h>\n')
        self.assert_finds("layers", "src/tensor/u.cc:1: write", "src/tensor/u.cc:2: write", "src/tensor/u.cc:3: own headers")


class Sizes(Checks):
    def test_limits_are_800_and_1200_lines(self):
        self.write("src/base/a.cc", "\n" * 800)
        self.write("src/base/a_test.cc", "\n" * 1200)
        self.assert_clean("sizes")
        self.write("src/base/a.cc", "\n" * 801)
        self.write("src/base/a_test.cc", "\n" * 1201)
        self.assert_finds("sizes", "src/base/a.cc:801: 801 lines, at most 800", "src/base/a_test.cc:1201: 1201 lines, at most 1200")

    def test_from_601_lines_on_there_is_a_warning(self):
        self.write("tools/a.py", "\n" * 600)
        self.assertNotIn("warning", self.run_check("sizes")[2])
        self.write("tools/a.py", "\n" * 601)
        status, _, err = self.run_check("sizes")
        self.assertEqual(status, 0)
        self.assertIn("tools/a.py:601: warning: 601 lines", err)

    def test_large_files_are_found_but_tokenizers_are_let_be(self):
        self.write("tests/x/tokenizer.json", b"x" * ((4 << 20) + 1))
        self.write("tests/x/model.safetensors", b"x" * (4 << 20))
        self.assert_clean("sizes")
        self.write("tests/x/model.safetensors", b"x" * ((4 << 20) + 1))
        self.assert_finds("sizes", "tests/x/model.safetensors:1: 4.2 MB")


class Sources(Checks):
    def test_each_way_to_print_or_end_is_found_below_cli(self):
        bad = ['printf("x");', 'std::fprintf(f, "x");', "std::cout << 1;", "std::cerr << 1;", 'fmt::print("x");', 'std::println("x");', "throw Error{};", "throw;",
               "abort();", "std::exit(1);", "std::terminate();", "assert(n > 0);", "std::regex r;", "#include <regex>"]
        rules = ["print"] * 6 + ["throw"] * 2 + ["end"] * 3 + ["assert"] + ["regex"] * 2
        self.write("src/base/a.cc", "\n".join(bad) + "\n")
        self.assert_finds("sources", *(f"src/base/a.cc:{n}: {rule}:" for n, rule in enumerate(rules, 1)))

    def test_the_same_lines_pass_in_cli_and_in_tests(self):
        bad = 'std::cout << 1;\nthrow 1;\nabort();\n'
        for name in ("src/cli/a.cc", "src/base/a_test.cc", "src/base/a_fuzz.cc"):
            self.write(name, bad)
        self.assert_clean("sources")

    def test_comments_strings_and_lookalikes_pass(self):
        self.write("src/base/a.cc", '// throw, abort() and std::cout\n/* exit(1)\n printf("x") */\nf("std::cout << throw abort()");\nauto s = R"(throw\nabort())";\n'
                   "static_assert(1);\nfmt::format_to(x);\nsnprintf(b, 1, f);\nstop.exit(1);\nworker->abort();\nchar c = '\"'; int big = 1'000'000;\n")
        self.assert_clean("sources")

    def test_code_after_a_quote_character_is_still_read(self):
        self.write("src/base/a.cc", "char c = '\"'; abort();\nint n = 1'000; abort(); char d = 'x';\n")
        self.assert_finds("sources", "src/base/a.cc:1: end:", "src/base/a.cc:2: end:")

    def test_checkpoint_names_stay_in_their_rooms(self):
        line = 'auto n = "model.layers.0.self_attn.q_proj.weight";\n'
        for room in ("models", "nn", "quant"):
            self.write(f"src/{room}/a.cc", line)
        self.write("src/engine/a_test.cc", line)
        self.write("src/engine/b.cc", 'f("--lm-head", options.lm_head, "lm_head");  // "lm_head.weight"\n')
        self.assert_clean("sources")
        self.write("src/loader/a.cc", "\n" + line)
        self.write("src/cli/a.cc", 'f("lm_head.weight");\n')
        self.assert_finds("sources", "src/cli/a.cc:1: name: 'lm_head.weight'", "src/loader/a.cc:2: name: 'q_proj'")

    def test_source_is_ascii_but_prose_and_tests_need_not_be(self):
        self.write("docs/a.md", "d\u00e9j\u00e0 vu\n")
        self.write("src/text/a_test.cc", 'f("\u00e9");\n')
        self.write("tools/make_some_goldens.py", "x = '\u00e9'\n")
        self.write("src/text/rust/src/b.rs", "fn f() {}\n#[cfg(test)]\nmod tests { const E: &str = \"\u00e9\"; }\n")
        self.assert_clean("sources")
        self.write("src/text/a.cc", "// caf\u00e9\n")
        self.write("src/text/rust/src/a.rs", "// \u00e9\n")
        self.assert_finds("sources", "src/text/a.cc:1: ascii: '\u00e9'", "src/text/rust/src/a.rs:1: ascii:")

    def test_machine_paths_hosts_and_talk_of_the_making_are_found(self):
        self.write("README.md", "see /" + "work/main/x\nin /" + "root/.cache\nfrom ../" + "shared/a\nat files.python" + "hosted.org\nby Cla" + "ude\n")
        self.assert_finds("sources", "README.md:1: path:", "README.md:2: path:", "README.md:3: path:", "README.md:4: host:", "README.md:5: making:")

    def test_paths_that_only_look_like_a_machines_pass(self):
        self.write("a.md", "src/" + "work/x, a/root/b, the /rooted tree, $HOME/" + "work\n")
        self.assert_clean("sources")

    def test_lock_files_may_name_registries(self):
        self.write("src/text/rust/Cargo.lock", 'source = "registry+https://github.com/rust-lang/cra' + 'tes.io-index"\n')
        self.assert_clean("sources")

    def test_an_excuse_holds_for_its_rule_alone(self):
        self.write("src/base/a.cc", "abort();  // check_sources: allow end: cannot be reached\nthrow 1;  // check_sources: allow end: wrong rule\n")
        self.assert_finds("sources", "src/base/a.cc:2: throw:")

    def test_binary_files_are_not_read(self):
        self.write("picture.png", b"\x89PNG\0 /" + b"work/main")
        self.assert_clean("sources")


if __name__ == "__main__":
    unittest.main()
