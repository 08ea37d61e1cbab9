"""Mistakes planted in the federation's code: for each the tests named beside it must fail on a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "rrcluster"
COMMAND, ROUNDS = "federation/test_federation_command.py", "federation/test_secure_rounds.py"
PROTOCOL, FOUNDATIONS = "secagg/test_protocol.py", "federation/test_foundations.py"
LIARS, LYING = "secagg/test_liars.py", "federation/test_lying_members.py"
TLS = "federation/test_tls.py"

# name: file, what it says, what the mistake makes of it, the tests that must fail
MISTAKES = {
    "a connection without a certificate": (
        "federation/tls_transport.py",
        "verify_mode = ssl.CERT_REQUIRED",
        "verify_mode = ssl.CERT_OPTIONAL",
        f"{TLS}::test_no_byte_of_a_stranger_is_read",
    ),
    "late answers are taken": (
        "federation/tls_transport.py",
        "if number == self._number and place in self._asked",
        "if place in self._asked",
        f"{TLS}::test_answers_belong_to_the_question_and_to_who_was_asked",
    ),
    "answers of any length are taken": (
        "federation/tls_transport.py",
        "        if length > longest:\n",
        "        if False:\n",
        f"{TLS}::test_who_says_too_much_is_out_and_a_late_answer_is_none",
    ),
    "shares for all members, not for the least that are honest": (
        "federation/secure_plan.py",
        "mechanism.step, least_honest=agreement.least_honest)",
        "mechanism.step, least_honest=members)",
        f"{ROUNDS}::test_shares_are_for_those_that_must_be_honest",
    ),
    "charge after reveal": (
        "federation/secagg/secure_server.py",
        '    charge()\n    revealed = ask("reveal", dict.fromkeys(signatures, signatures))\n',
        '    revealed = ask("reveal", dict.fromkeys(signatures, signatures))\n    charge()\n',
        f"{PROTOCOL}::test_the_sum_of_everybody_is_exact",
    ),
    "add-remove claimed in the statement": (
        "federation/deployment.py",
        '            "adjacency": "zero-out",\n',
        "",
        f"{COMMAND}::test_a_secure_training_from_settings_to_models",
    ),
    "add-remove claimed in what operators sign": (
        "federation/agreed_run.py",
        'plan.event.adjacency if self.secure is None else "zero-out"',
        "plan.event.adjacency",
        f"{ROUNDS}::test_what_operators_sign_is_what_shares_allow",
    ),
    "amplification claimed under shares": (
        "federation/secure_plan.py",
        "if not plan.event.plain_gaussian or mechanism.slots.count > 1:",
        "if mechanism.slots.count > 1:",
        f"{ROUNDS}::test_plans_whose_claim_would_not_hold_are_refused",
    ),
    "the same mask in two rounds": (
        "federation/secagg/secure_client.py",
        "self._seed = secrets.token_bytes(masks.SECRET_BYTES)",
        "self._seed = identity.private_bytes_raw()",
        f"{PROTOCOL}::test_every_attempt_has_masks_of_its_own",
    ),
    "masks that do not depend on the round": (
        "federation/secagg/secure_client.py",
        "digest(self.terms.digest, self.round_index.to_bytes(8), self.number.to_bytes(8))",
        "digest(self.terms.digest, self.number.to_bytes(8))",
        f"{PROTOCOL}::test_every_attempt_has_masks_of_its_own",
    ),
    "no noise share where no client can answer": (
        "federation/daemon.py",
        "mechanism.sum_messages(reports) + plan.noise_share()",
        "mechanism.sum_messages(reports) + (plan.noise_share() if len(reports.client_ids) else 0)",
        f"{ROUNDS}::test_a_member_none_of_whose_clients_can_answer_makes_noise_all_the_same",
    ),
    "the stated guarantee is not computed again": (
        "federation/agreed_run.py",
        "        _check_guarantee(agreement.guarantee, run.guarantee())\n",
        "",
        f"{COMMAND}::test_an_operator_does_not_sign_what_does_not_hold",
    ),
    "a member's ledger is written after its sum was sent": (
        "federation/daemon.py",
        "        self._join(attempt.round_index, attempt.number)\n",
        "",
        f"{ROUNDS}::test_the_ledger_ends_the_federation_for_its_member",
    ),
    "a seeded round is asked for again": (
        "federation/deployment.py",
        "if not plan.secure and ledger.charged(first.round_index):",
        "if False:",
        "federation/test_plain_rounds.py::test_a_seeded_round_that_was_charged_is_not_asked_for_again",
    ),
    "fewer survivors than agreed on are unmasked": (
        "federation/secagg/terms.py",
        "if len(survivors) < self.least_survivors:",
        "if len(survivors) < 2:",
        f"{PROTOCOL}::test_fewer_survivors_than_agreed_on_are_never_unmasked",
    ),
    "masks that do not depend on what members were told": (
        "federation/secagg/secure_client.py",
        "high.to_bytes(4), task_digest)",
        "high.to_bytes(4))",
        f"{PROTOCOL}::test_clients_that_were_told_different_things_have_no_sum",
    ),
    "the commitment to a seed is not checked": (
        "federation/secagg/secure_server.py",
        "return attempt.expand_seed(dealer, secret)[0] == keys.commitment",
        "return True",
        f"{LIARS}::test_a_dealer_whose_shares_give_another_small_secret_is_named",
    ),
    "the public key of a mask is not checked": (
        "federation/secagg/secure_server.py",
        "public_key().public_bytes_raw() == keys.mask_key",
        "public_key().public_bytes_raw() != b''",
        f"{LIARS}::test_a_dealer_of_false_shares_is_named_and_no_holder_is",
    ),
    "the share of a liar is used": (
        "federation/secagg/secure_server.py",
        "                liars.add(holder)\n",
        "                liars.add(holder)\n                shares[dealer][holder + 1] = 1\n",
        f"{LIARS}::test_one_liar_of_four_is_named_and_the_round_saved",
    ),
    "a liar is not named": (
        "federation/secagg/secure_server.py",
        "                liars.add(holder)\n",
        "                pass\n",
        f"{LIARS}::test_two_liars_of_six_are_named_and_the_round_saved",
    ),
    "what opens one half of an envelope opens the other": (
        "federation/secagg/masks.py",
        "return key_pair[:KEY_BYTES], key_pair[KEY_BYTES:]",
        "return key_pair[:KEY_BYTES], key_pair[:KEY_BYTES]",
        "secagg/test_what_a_server_learns.py::test_a_hostile_server_learns_one_sum_at_most",
    ),
    "the commitment gives the mask away": (
        "federation/secagg/secure_client.py",
        "        _, own_mask = self.attempt.expand_seed(self.place, self._seed)\n        words",
        "        own_mask, _ = self.attempt.expand_seed(self.place, self._seed)\n        words",
        f"{LIARS}::test_nothing_public_takes_the_mask_off",
    ),
    "a sum that cannot be is released": (
        "federation/collect.py",
        "return self.secure.checked_sum(total)",
        "return NoisySum(total)",
        f"{LYING}::test_a_sum_that_cannot_be_is_charged_and_not_released",
    ),
    "a sum of any norm is released": (
        "federation/secure_plan.py",
        " or norm > longest:",
        ":",
        f"{LYING}::test_a_sum_that_cannot_be_is_charged_and_not_released",
    ),
    "an attempt is counted though an envelope cannot be opened": (
        "federation/daemon.py",
        "        if unopened := client.open(wire.read_envelopes(letter)):\n",
        "        self._join(attempt.round_index, attempt.number)\n"
        "        if unopened := client.open(wire.read_envelopes(letter)):\n",
        f"{LYING}::test_envelopes_that_cannot_be_opened_cost_nobody_an_attempt_who_cannot_open_them",
    ),
    "real clients are computed together": (
        "federation/daemon.py",
        "side.answer_singly(guidance, self._present(ids), self._clients, keys)",
        "side.answer(guidance, self._clients(self._present(ids)), keys)",
        f"{ROUNDS}::test_a_client_whose_training_fails_takes_nobody_else_out_of_the_sum",
    ),
    "epsilon claimed towards members that know their own noise": (
        "federation/secure_plan.py",
        "        if self.terms.most_colluders:\n",
        "        if self.terms.least_survivors:\n",
        f"{ROUNDS}::test_what_operators_sign_is_what_shares_allow",
    ),
    "a ledger that lost attempts goes on": (
        "federation/client_ledger.py",
        "if any(count[federation] < before for federation, before in self._count.items()):",
        "if False:",
        f"{FOUNDATIONS}::test_a_ledger_that_lost_attempts_is_refused",
    ),
    "the lifetime budget is not checked": (
        "federation/client_ledger.py",
        "if self._lifetime is not None and total > self._lifetime:",
        "if False:",
        f"{FOUNDATIONS}::test_trainings_add_up_to_the_lifetime_budget",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_text_of_a_planted_mistake_is_there(name):
    file, old, _, test = MISTAKES[name]
    assert (PACKAGE / file).read_text().count(old) == 1
    path, _, function = test.partition("::")
    assert f"def {function}(" in (TESTS / path).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_caught(name, tmp_path):
    file, old, new, test = MISTAKES[name]
    shutil.copytree(PACKAGE, tmp_path / "rrcluster")
    target = tmp_path / "rrcluster" / file
    target.write_text(target.read_text().replace(old, new))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / test)],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # from which -m imports first
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout
