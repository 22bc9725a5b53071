"""`eligo shots teach`: find the examples that make the right answer likely."""

from eligo.cli.console import print_result, print_text
from eligo.shots.config import TeachConfig


def run(config: TeachConfig, *, dry_run: bool = False, json: bool = False) -> None:
    """Label queries by beam search; a stopped run continues when it is started again.

    Args:
        dry_run: Only count the calls of the model, and estimate how long they would take.
        json: Print one JSON document.
    """
    from eligo.shots.teacher.run import plan, teach

    print_result(plan(config) if dry_run else teach(config), json)
    if dry_run and not json:
        print_text("to call the model less: lower --shots, --beam or --sampler.num_candidates")
