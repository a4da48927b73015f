"""The faults, each as one exact text replacement in one file of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROLLBACK = "tests/test_known_faults_rollback.py"
POSITIONS = "tests/test_known_faults_padding_positions.py"
WINDOWS = "tests/test_known_faults_windows_limits.py"
STOPPING = "tests/test_known_faults_stopping.py"
VERIFYING = "tests/test_known_faults_verification_drafters.py"
NUMBERS = "tests/test_known_faults_numbers.py"
LAYOUTS = "tests/test_layouts.py"
ACCOUNTING = "tests/test_accounting.py"
WORK = "tests/test_work.py"
VERIFICATION = "tests/test_verification.py"
DRAFTING = "tests/test_drafting.py"
CELLS = "tests/test_cells.py"
TRACE = "tests/test_trace.py"
TOP_TOKENS = "tests/test_top_tokens.py"

# In this order: pure arithmetic first.
FAST_SUITE = (
    *(LAYOUTS, ACCOUNTING, VERIFICATION, DRAFTING),
    *(ROLLBACK, VERIFYING, STOPPING, POSITIONS, WINDOWS, CELLS, TRACE, NUMBERS),
)


@dataclass(frozen=True)
class Planted:
    """One fault.

    Args:
        name: short, unique.
        breaks: what goes wrong, in words.
        file: path inside the package.
        old: text that occurs exactly once there; new: what it becomes.
        killers: tests that should find it. Where they do not, the whole fast suite runs.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]

    def apply(self, package: Path) -> None:
        """Plant it in a copy of the package.

        Raises:
            ValueError: the text does not occur exactly once, or nothing would change.
        """
        path = package / self.file
        source = path.read_text(encoding="utf-8")
        found = source.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(
                f"{self.name}: the text to replace occurs {found} times in emssd/{self.file} instead of once; "
                "bring tests/mutants/planted.py in line with the engine."
            )
        changed = source.replace(self.old, self.new)
        compile(changed, str(path), "exec")
        path.write_text(changed, encoding="utf-8")


PLANTED = (
    # --- rollback of the target's cache ---
    Planted(
        "shared-offset",
        "one offset for the whole batch: every ragged row advances by the largest gain",
        "layouts.py",
        'row.next_slot += gain if self.cache == "ragged" else 0',
        'row.next_slot += largest if self.cache == "ragged" else 0',
        (f"{LAYOUTS}::test_a_shared_column_advances_by_the_largest_gain_a_ragged_row_by_its_own",),
    ),
    Planted(
        "target-crop-too-far",
        "rollback of the target takes one accepted token too many",
        "layouts.py",
        "kept[row.index] = gain = emitted[row.index]",
        "kept[row.index] = emitted[row.index]\n                gain = max(emitted[row.index] - 1, 1)",
        (f"{ROLLBACK}::test_ragged_rollback_keeps_length_and_position_per_row_after_every_round",),
    ),
    Planted(
        "target-crop-too-short",
        "rollback of the target leaves one rejected draft in the cache, and visible",
        "layouts.py",
        "kept[row.index] = gain = emitted[row.index]",
        "kept[row.index] = emitted[row.index]\n"
        "                gain = emitted[row.index] + int(row_plan.num_drafted >= emitted[row.index])",
        (f"{ROLLBACK}::test_ragged_rollback_keeps_length_and_position_per_row_after_every_round",),
    ),
    Planted(
        "no-shared-column",
        "padded rows keep their own cursors, so there is no write column and no hole",
        "layouts.py",
        'row.next_slot += largest if self.cache == "padded" else 0',
        'row.next_slot += emitted[row.index] if self.cache == "padded" else 0',
        (f"{LAYOUTS}::test_worked_example_step_by_step",),
    ),
    # --- what is visible ---
    Planted(
        "holes-visible",
        "holes are not masked: rejected drafts of slower rows stay visible",
        "layouts.py",
        "    positions[row.slots] = np.arange(row.cache_len, dtype=np.int32)\n",
        "    positions[row.slots] = np.arange(row.cache_len, dtype=np.int32)\n    positions[row.holes] = 0\n",
        (f"{LAYOUTS}::test_key_positions_of_a_row_with_holes",),
    ),
    Planted(
        "zeroed-tail-visible",
        "prompt padding is zeroed instead of masked: a zeroed key still weighs exp(0)",
        "layouts.py",
        "    positions[row.slots] = np.arange(row.cache_len, dtype=np.int32)\n",
        "    positions[row.slots] = np.arange(row.cache_len, dtype=np.int32)\n"
        "    positions[row.prompt_length : row.prompt_length + row.prompt_pads] = 0\n",
        (
            f"{LAYOUTS}::test_key_positions_of_a_row_with_holes",
            f"{ROLLBACK}::test_rejected_drafts_never_leak_into_the_output",
        ),
    ),
    Planted(
        "pads-visible",
        "the last real token sees the pads that fill its row up",
        "layouts.py",
        "    positions[row.next_slot : row.next_slot + real] = np.arange(row.cache_len, row.cache_len + real)\n",
        "    positions[row.next_slot : row.next_slot + real] = np.arange(row.cache_len, row.cache_len + real)\n"
        "    positions[row.next_slot + real :] = row.cache_len + real - 1\n",
        (f"{LAYOUTS}::test_key_positions_name_each_slot_once_and_hide_everything_dead",),
    ),
    Planted(
        "not-causal",
        "a draft sees the drafts after it",
        "attention.py",
        "visible = (key >= 0) & (key <= query)",
        "visible = (key >= 0) & (key <= query[:, -1:])",
        (f"{WINDOWS}::test_each_query_token_has_its_own_window",),
    ),
    Planted(
        "window-of-last-query",
        "one sliding window, that of the last draft, for all queries of a row",
        "attention.py",
        "visible &= key > query - window",
        "visible &= key > query[:, -1:] - window",
        (f"{WINDOWS}::test_each_query_token_has_its_own_window",),
    ),
    Planted(
        "window-start-of-last-query",
        "keys are sliced away from the last draft's window on, so earlier drafts lose some",
        "attention.py",
        "return max(min(row.position_ids[0] for row in group.rows) - window + 1, 0)",
        "return max(min(row.position_ids[-1] for row in group.rows) - window + 1, 0)",
        (f"{WINDOWS}::test_each_query_token_has_its_own_window",),
    ),
    Planted(
        "window-one-short",
        "the window does not count the query itself",
        "attention.py",
        "visible &= key > query - window",
        "visible &= key > query - window + 1",
        (f"{WINDOWS}::test_each_query_token_has_its_own_window",),
    ),
    Planted(
        "cross-row-read",
        "every row that attends alone reads the first row's cache",
        "attention.py",
        "        start = group.flat_start\n",
        "        start = 0\n",
        (f"{POSITIONS}::test_packed_rows_do_not_leak_into_each_other",),
    ),
    Planted(
        "cross-row-batched",
        "rows that are batched in one call read their neighbour's cache",
        "attention.py",
        "[:, :, first : group.span].transpose(0, 1)",
        "[:, :, first : group.span].roll(1, 1).transpose(0, 1)",
        (f"{ROLLBACK}::test_ragged_rollback_keeps_length_and_position_per_row_after_every_round",),
    ),
    Planted(
        "cross-row-write",
        "rows from the third on write one slot too low, at first into their neighbour's place",
        "attention.py",
        "slots.extend(self.store.offsets[row.row] + slot for slot in row.slots)",
        "slots.extend(self.store.offsets[row.row] + slot - (row.row > 1) for slot in row.slots)",
        (f"{ROLLBACK}::test_ragged_rollback_keeps_length_and_position_per_row_after_every_round",),
    ),
    # --- positions ---
    Planted(
        "column-positions",
        "a token's position is its column in the padded cache",
        "layouts.py",
        "start, first = row.next_slot, row.cache_len",
        "start, first = row.next_slot, row.next_slot",
        (f"{LAYOUTS}::test_positions_run_on_from_the_rows_own_cache_length_and_pads_repeat_the_last",),
    ),
    Planted(
        "offset-added-twice",
        "our own +2 on top of the offset that OPT adds by itself",
        "model_runner.py",
        "positions = [position for row in plan.rows for position in row.position_ids]",
        "positions = [position + 2 for row in plan.rows for position in row.position_ids]",
        (f"{POSITIONS}::test_learned_position_offset_is_left_to_the_model",),
    ),
    Planted(
        "no-positions",
        "position ids are not handed over, so the model counts over the packed sequence",
        "model_runner.py",
        "position_ids=inputs[1:], use_cache=False",
        "use_cache=False",
        (f"{POSITIONS}::test_learned_position_offset_is_left_to_the_model",),
    ),
    Planted(
        "clamped-positions",
        "positions beyond the limit share the last embedding",
        "model_runner.py",
        "positions = [position for row in plan.rows for position in row.position_ids]",
        "positions = [min(position, 61) for row in plan.rows for position in row.position_ids]",
        (f"{WINDOWS}::test_positions_are_never_clamped_at_the_limit",),
    ),
    Planted(
        "context-one-over",
        "one token is fed beyond the model's context",
        "layouts.py",
        "return [min(max_new_tokens, context_length - length + 1) for length in prompt_lengths]",
        "return [min(max_new_tokens, context_length - length + 2) for length in prompt_lengths]",
        (f"{LAYOUTS}::test_a_model_with_c_positions_emits_one_token_unfed",),
    ),
    Planted(
        "context-one-short",
        "the token that can be emitted unfed at the end of the context is lost",
        "layouts.py",
        "return [min(max_new_tokens, context_length - length + 1) for length in prompt_lengths]",
        "return [min(max_new_tokens, context_length - length) for length in prompt_lengths]",
        (f"{LAYOUTS}::test_a_model_with_c_positions_emits_one_token_unfed",),
    ),
    Planted(
        "masked-query",
        "pads stand before every key, so their softmax is over nothing",
        "layouts.py",
        "positions = (*range(first, first + real), *[first + real - 1] * pads)",
        "positions = (*range(first, first + real), *[-1] * pads)",
        (f"{LAYOUTS}::test_positions_run_on_from_the_rows_own_cache_length_and_pads_repeat_the_last",),
    ),
    Planted(
        "pad-by-id",
        "a token counts as padding if it has the pad's id",
        "layouts.py",
        'return self.num_fed - self.input_kinds.count("pad")',
        "return sum(token != 0 for token in self.input_token_ids)",
        (f"{STOPPING}::test_pad_and_end_of_sequence_may_be_the_same_id",),
    ),
    # --- verification ---
    Planted(
        "first-draft-unchecked",
        "the first draft is accepted unseen",
        "verification.py",
        "    leading = matches.long()",
        "    matches[:, :1] = drafted[:, :1]\n    leading = matches.long()",
        (f"{VERIFYING}::test_the_first_draft_is_checked",),
    ),
    Planted(
        "verify-row-off-by-one",
        "draft i is judged by the logits after it",
        "verification.py",
        "(target_token_ids[:, :width] == draft_token_ids)",
        "(target_token_ids[:, -width:] == draft_token_ids)",
        (f"{VERIFICATION}::test_rows_are_judged_apart", f"{VERIFYING}::test_the_first_draft_is_checked"),
    ),
    Planted(
        "sum-of-matches",
        "all matching drafts are counted instead of the leading run",
        "verification.py",
        "leading = matches.long().cumprod(dim=1)",
        "leading = matches.long()",
        (f"{VERIFYING}::test_the_leading_run_counts_not_the_sum_of_matches",),
    ),
    Planted(
        "stale-drafts-count",
        "entries beyond a row's own drafts may be accepted",
        "verification.py",
        "matches = (target_token_ids[:, :width] == draft_token_ids) & drafted & before_end",
        "matches = (target_token_ids[:, :width] == draft_token_ids) & before_end",
        (f"{VERIFICATION}::test_entries_beyond_the_number_of_drafts_are_not_looked_at",),
    ),
    Planted(
        "end-only-at-the-end",
        "only the last committed token is tested for the end of sequence",
        "verification.py",
        "ends = torch.isin(draft_token_ids, eos_token_ids) & drafted",
        "ends = torch.zeros_like(drafted)",
        (f"{STOPPING}::test_end_of_sequence_inside_an_accepted_block",),
    ),
    Planted(
        "token-after-the-end",
        "the target's own token follows an accepted end of sequence",
        "verification.py",
        "return num_accepted, num_accepted + (~ended).long()",
        "return num_accepted, num_accepted + 1",
        (f"{STOPPING}::test_end_of_sequence_inside_an_accepted_block",),
    ),
    Planted(
        "lost-bonus",
        "full acceptance commits K tokens instead of K + 1",
        "verification.py",
        "return num_accepted, num_accepted + (~ended).long()",
        "return num_accepted, num_accepted + (~ended & ((num_accepted < num_drafted) | (num_drafted == 0))).long()",
        (f"{VERIFYING}::test_full_acceptance_keeps_the_bonus_token",),
    ),
    Planted(
        "logits-counted-without-pads",
        "the rows of logits are found by real tokens, though pads have logits too",
        "decoding.py",
        "starts = [0, *accumulate(row.num_fed for row in plan.rows)]",
        "starts = [0, *accumulate(row.num_real for row in plan.rows)]",
        (f"{POSITIONS}::test_mixed_drafts_permute_with_the_rows",),
    ),
    # --- stopping ---
    Planted(
        "overshoot",
        "drafts are not capped by the tokens that are still wanted",
        "decoding.py",
        "return max(min(wanted, request.remaining - 1, room), 0)",
        "return max(min(wanted, room), 0)",
        (f"{STOPPING}::test_exactly_max_new_tokens_and_never_more",),
    ),
    Planted(
        "cap-before-end",
        "a row that ends with its last allowed token is said to have stopped by length",
        "trace.py",
        'return "eos"\n    if len(output_token_ids) >= max_new_tokens:',
        'return "eos" if len(output_token_ids) < max_new_tokens else "length"\n'
        "    if len(output_token_ids) >= max_new_tokens:",
        (f"{STOPPING}::test_the_end_as_the_last_allowed_token_is_an_end",),
    ),
    Planted(
        "finished-row-written",
        "pads of finished rows are written into their cache",
        "layouts.py",
        "            position_ids=(last_position,) * width,\n            slots=(),",
        "            position_ids=(last_position,) * width,\n"
        "            slots=tuple(range(row.cache_len - width, row.cache_len)),",
        (f"{STOPPING}::test_finished_rows_in_a_live_batch_stay_as_they_are",),
    ),
    Planted(
        "finished-row-fed",
        "packed inputs still feed a token for every finished row",
        "layouts.py",
        "plans.append(self._plan_finished(row, width))",
        "plans.append(self._plan_finished(row, max(width, 1)))",
        (f"{LAYOUTS}::test_finished_rows_are_fed_only_with_padded_inputs_and_never_written",),
    ),
    # --- drafters ---
    Planted(
        "draft-crop-too-far",
        "the draft's cache is rewound by one token too many in every round",
        "drafting.py",
        "self.cache_lens[row] = min(length + kept, length + len(committed.get(row, [])) - 1)",
        "self.cache_lens[row] = min(length + kept, length + len(committed.get(row, [])) - 1) - 1",
        (f"{ROLLBACK}::test_draft_cache_desync_same_model_with_two_spoiled_rounds",),
    ),
    Planted(
        "draft-crop-too-short",
        "the draft's cache keeps one rejected draft after every round",
        "drafting.py",
        "self.cache_lens[row] = min(length + kept, length + len(committed.get(row, [])) - 1)",
        "self.cache_lens[row] = min(length + kept + 1, length + len(committed.get(row, [])) - 1)",
        (f"{ROLLBACK}::test_draft_cache_desync_another_model_that_is_often_wrong",),
    ),
    Planted(
        "catch-up-forgotten",
        "after full acceptance the last draft counts as cached, though it was never fed",
        "drafting.py",
        "for draft, token in zip(drafts[:-1], committed.get(row, []), strict=False):",
        "for draft, token in zip(drafts, committed.get(row, []), strict=False):",
        (f"{ROLLBACK}::test_catch_up_after_full_acceptance_feeds_two_tokens",),
    ),
    Planted(
        "no-upkeep-without-drafts",
        "a step without drafts counts as cached by the drafter, which saw nothing of it",
        "drafting.py",
        "        for row, (length, drafts) in self.drafted.items():\n            kept = 0\n",
        "        for row in committed.keys() - self.drafted.keys():\n"
        "            self.cache_lens[row] += len(committed[row])\n"
        "        for row, (length, drafts) in self.drafted.items():\n            kept = 0\n",
        (f"{ROLLBACK}::test_zero_draft_steps_do_not_spoil_the_drafter",),
    ),
    Planted(
        "draft-vocabulary",
        "the draft model may propose ids that the target does not have",
        "drafting.py",
        "return logits[:, : self.vocabulary].argmax(dim=-1).tolist()",
        "return logits.argmax(dim=-1).tolist()",
        (f"{VERIFYING}::test_draft_vocabularies_of_other_sizes_are_served",),
    ),
    Planted(
        "draft-limit",
        "the draft model is fed beyond its own length limit",
        "drafting.py",
        "return max(min(limit, self.context - len(row.token_ids) + 1), 0)",
        "return limit",
        (f"{WINDOWS}::test_a_draft_model_with_a_smaller_limit_stops_drafting_and_nothing_else_changes",),
    ),
    Planted(
        "lookup-key-too-late",
        "prompt lookup takes keys after which fewer than K tokens follow",
        "drafting.py",
        "usable = bisect_right(starts, len(text) - row.num_draft_tokens - size)",
        "usable = bisect_right(starts, len(text) - row.num_draft_tokens - size + 1)",
        (f"{DRAFTING}::test_a_key_starts_at_most_k_plus_two_before_the_prompts_end",),
    ),
    Planted(
        "lookup-in-another-row",
        "prompt lookup searches the first row's table for all rows",
        "drafting.py",
        "starts = self.tables[row.index].get(tuple(row.token_ids[-size:]), [])",
        "starts = self.tables[min(self.tables)].get(tuple(row.token_ids[-size:]), [])",
        (f"{DRAFTING}::test_a_row_never_looks_into_another_rows_prompt",),
    ),
    # --- what is reported ---
    Planted(
        "stats-from-settings",
        "the number of drafts is reported as the one that was asked for",
        "trace_building.py",
        "            num_drafted=planned.num_drafted,\n",
        '            num_drafted=self.config.max_draft_tokens or 0 if planned.kind == "decode" else 0,\n',
        (f"{TRACE}::test_round_trip_is_exact",),
    ),
    Planted(
        "top-tokens-of-other-positions",
        "the best few tokens are looked up at other positions than those that were judged",
        "decoding.py",
        "range(starts[row.row], starts[row.row] + counts[row.row])",
        "range(row.row, row.row + counts[row.row])",
        (f"{TOP_TOKENS}::test_they_are_the_plain_models_best_after_each_committed_token",),
    ),
    Planted(
        "holes-not-counted",
        "holes are made but never counted",
        "layouts.py",
        "                row.holes.extend(new_holes)\n",
        "",
        (f"{LAYOUTS}::test_worked_example_step_by_step",),
    ),
    Planted(
        "scan-one-short",
        "a query does not count the slot that it writes itself",
        "accounting.py",
        "return queries * first_slot + queries * (queries + 1) // 2",
        "return queries * first_slot + queries * (queries - 1) // 2",
        (f"{ACCOUNTING}::test_worked_example_numbers",),
    ),
    Planted(
        "finished-rows-as-pads",
        "pads of finished rows are booked as pads of live rows",
        "accounting.py",
        'inputs["finished"] += row.num_fed',
        'inputs["pad"] += row.num_fed',
        (f"{ACCOUNTING}::test_account_equals_counting_every_query_and_slot",),
    ),
    Planted(
        "window-not-cut-in-rectangles",
        "attention FLOPs take a windowed layer's whole span, of which the engine cuts off the past",
        "work.py",
        "begin = first if row.key_positions is None else 0",
        "begin = 0",
        (f"{WORK}::test_flops_are_exactly_those_of_the_flop_counter",),
    ),
    Planted(
        "head-answers-for-whole-prompts",
        "in prefill the LM head is said to answer for every token of a prompt",
        "work.py",
        '"useful": len(plan.rows)}',
        '"useful": plan.num_fed}',
        (f"{WORK}::test_prefill_asks_the_head_for_one_row_of_each_prompt",),
    ),
    Planted(
        "more-experts-than-there-are",
        "a step reads a mixture's experts once for each row",
        "model_shape.py",
        "touched = min(rows * self.experts_per_token, self.experts)",
        "touched = rows * self.experts_per_token",
        ("tests/test_model_shape.py::test_weights_of_a_step_are_read_once_and_experts_as_far_as_rows_can_touch_them",),
    ),
    Planted(
        "recorder-counts-other-runs",
        "a recorder counts dense layers in forwards of other runs, too",
        "recorder.py",
        "if watch is None or active_step() is not watch.step:",
        "if watch is None:",
        ("tests/test_recorder.py::test_runs_in_threads_on_a_shared_model_count_apart",),
    ),
    Planted(
        "restored-keys-in-the-first-row",
        "copied prompt keys and values all go to the first row",
        "kv_cache.py",
        "torch.tensor([offset + slot for offset, length in rows",
        "torch.tensor([slot for offset, length in rows",
        ("tests/test_prefilled.py::test_snapshots_are_copies_for_any_capacities",),
    ),
    Planted(
        "replay-accepts-one-more",
        "a replayed step has its wrong token one place too late",
        "acceptance_replay.py",
        "drafts[accepted] = (drafts[accepted] + 1) % self.lm.vocab_size",
        "drafts[-1] = (drafts[-1] + 1) % self.lm.vocab_size",
        ("tests/test_acceptance_replay.py::test_every_step_accepts_what_was_asked_and_the_output_is_greedy",),
    ),
    Planted(
        "bench-always-in-the-same-order",
        "every repeat runs the methods in the same order, so that a drift favours one",
        "benchmark.py",
        "for entry in entries if repeat % 2 == 0 else reversed(entries):",
        "for entry in entries:",
        ("tests/test_benchmark.py::test_runs_are_interleaved_and_every_other_repeat_goes_backwards",),
    ),
    Planted(
        "bench-forgets-wrong-baseline",
        "a speed-up over greedy counts although greedy's output is wrong",
        "bench_results.py",
        "return not self.failures and next(wrong, None) is None",
        "return not self.failures",
        ("tests/test_benchmark.py::test_a_speed_up_over_a_wrong_greedy_does_not_count",),
    ),
)
