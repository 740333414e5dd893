"""The study "Attention Sinks in Diffusion Language Models", figure by figure and table by table, and what lies beyond it.

Each module declares one experiment (see `jaxsink.study.experiments`): the question, the paper's claim, what is predicted of
whom, the nulls that it is held against, and the function that shows what was measured.
"""

PAPER = (
    "fig1_scores_over_steps",
    "fig2_unmasking_order",
    "fig3_histogram",
    "fig4_a_jump",
    "fig5_layers_and_heads",
    "fig6_queries_and_short_lives",
    "fig7_trajectories",
    "fig8_drift",
    "fig10_epsilon",
    "table1_masking",
    "table2_tokens",
)
BEYOND = (
    "beyond_controls",
    "beyond_protocol",
    "beyond_gate",
    "beyond_values",
    "beyond_origin",
    "beyond_sensitivity",
    "beyond_dose",
    "beyond_depth",
    "beyond_clean_ranking",
    "beyond_readings",
    "beyond_training",
    "beyond_extra_sink",
    "beyond_modes",
)
EXPLAINED = (
    "explain_waiting",
    "explain_paths",
    "explain_past",
    "explain_token",
    "explain_takeover",
    "explain_frequency",
)  # what the paper's text explains but does not test
INSIDE = (
    "inside_next",
    "inside_agreement",
    "inside_outlier",
    "inside_holds",
    "inside_residual",
    "inside_scratchpad",
)  # what others say of the inside of diffusion models
ORDER = PAPER + BEYOND + EXPLAINED + INSIDE
USUAL = (*PAPER, "beyond_controls", "beyond_values")  # without --full
DEFAULT_MODELS = ("mini-llada", "mini-dream", "mini-llama")
QUICK, FULL = (50, 20), (228, 50)  # problems per condition, generations recorded


def short(module: str) -> str:
    """fig7_trajectories -> fig7, beyond_dose -> dose, explain_paths -> paths, inside_next -> next."""
    return module.split("_")[0 if module in PAPER else 1]


SHORT = {short(module): module for module in ORDER}
