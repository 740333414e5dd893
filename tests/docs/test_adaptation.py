"""The page on the adaptation of SmolLM2 is written from the committed files of its runs."""

from __future__ import annotations

import importlib.util

from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("adaptation", ROOT / "docs" / "adaptation.py")
assert FOUND is not None and FOUND.loader is not None
adaptation = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(adaptation)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert adaptation.PAGE.read_text(encoding="utf-8") == adaptation.page(), "python docs/adaptation.py"


def test_what_the_page_says_of_the_sink_is_in_the_files() -> None:
    (arm, *_), (opened, *_), run = (adaptation.looks(name) for name in ("arm.csv", "opened.csv", "seed-0.csv"))
    assert arm["alpha_first"] > 0.3 and arm["value_first"] < 0.6 and opened["alpha_first"] < 0.05
    later = [look for look in run if look["step"] >= 40]
    assert later and all(look["alpha_first"] > 0.2 and look["value_first"] < 0.5 for look in later)
    assert [look["validation_loss"] for look in run] == sorted((look["validation_loss"] for look in run), reverse=True)


def test_a_run_that_is_repeated_may_lose_its_sink() -> None:
    """The same order of the data with sums in another order: the same for five steps, a sink after twenty, none later."""
    before, again = ({look["step"]: look for look in adaptation.looks(f"seed-1{end}.csv")} for end in ("", "-again"))
    for step in (2, 5):
        assert abs(before[step]["alpha_first"] - again[step]["alpha_first"]) < 1e-5
    assert again[20]["alpha_first"] > 0.15 and again[20]["lost_every_row"] > 0.3 and again[20]["lost_few_rows"] > 0.3
    later = [look for step, look in again.items() if step >= 40]
    assert len(later) == 5 and all(look["alpha_first"] < 0.005 for look in later)
    assert all(abs(look[name]) < 0.003 for look in later for name in ("lost_every_row", "lost_few_rows"))
    assert all(look["alpha_first"] < 0.005 for look in adaptation.looks("seed-0-again.csv") if look["step"] >= 40)


def test_the_other_order_of_the_data_agrees() -> None:
    first, second = (adaptation.looks(f"seed-{seed}.csv")[-1] for seed in (0, 1))
    assert first["step"] == second["step"] == 320
    assert abs(first["validation_loss"] - second["validation_loss"]) < 0.05
    assert abs(first["alpha_first"] - second["alpha_first"]) < 0.05 and second["alpha_first"] > 0.2
    assert (round(first["value_first"], 2), round(second["value_first"], 2)) == (0.44, 0.64)  # as the page says
    back = [look for look in adaptation.looks("seed-1.csv") if look["step"] == 40]
    assert back and back[0]["alpha_first"] > 0.15 and back[0]["value_first"] < 0.7


def test_the_sink_of_the_opened_mask_belongs_to_one_token() -> None:
    lines = {(one["attention"], one["added"]): one for one in adaptation.lines_of("first-1.csv")}
    assert len(lines) == 10 and {one["texts"] for one in lines.values()} == {"500"}

    def of(attention: str, added: str, name: str) -> tuple[float, float]:
        line = lines[attention, added]
        return float(line[f"{name}: low"]), float(line[f"{name}: high"])

    for added in ("nothing", "<|im_start|> first", "<|endoftext|> first"):
        assert of("causal", added, "first")[0] > 0.45
    assert max(of("bidirectional", added, "first")[1] for added in ("nothing", "<|im_start|> first")) < 0.07
    assert of("bidirectional", "<|endoftext|> first", "first")[0] > 0.2
    assert of("bidirectional", "<|endoftext|> in the middle", "the added token")[0] > 0.2
    assert of("bidirectional", "<|im_start|> in the middle", "the added token")[1] < 0.03


def test_who_receives_most_is_said_in_readable_tokens() -> None:
    said = [
        adaptation.most(case) for case in adaptation.lines_of("first-1.csv") if case["attention"] == "bidirectional"
    ]
    assert [words.split(" ")[0] for words in said] == ["`⏎`", "`⏎`", "`⏎`", *["`<\\|endoftext\\|>`"] * 2]
