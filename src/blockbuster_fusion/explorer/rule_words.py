"""Each rule in a sentence or two, for readers who do not know the patterns."""

WORDS = {
    "fuse_consecutive_maps": (
        "Two loops over the same blocks, one after the other, become one loop. Each block is used "
        "as soon as it is made."
    ),
    "fuse_sibling_maps": (
        "Two loops that read the same list become one loop. Its blocks are loaded once for both."
    ),
    "fuse_map_with_reduction": (
        "A loop that makes a list, and the sum over that list, become one loop that adds up as it "
        "goes. The list is not stored."
    ),
    "swap_scale_dot": (
        "Scaling rows and then multiplying gives the same as multiplying and then scaling. The "
        "scale moves behind the product, which need not wait for it."
    ),
    "swap_shift_dot": (
        "Shifting rows and then multiplying gives the same as multiplying and then adding a "
        "correction. The product need not wait for the shift."
    ),
    "extend_map": (
        "The work beside a loop moves into it and is done in each of its iterations. That may "
        "repeat work, but loops inside can now be fused."
    ),
    "extend_map_over_producers": (
        "The loop that makes a list moves into the loop that reads it, and runs in each of its "
        "iterations. That may repeat work, but the two loops inside can now be fused."
    ),
    "peel_first_iteration": (
        "The first iteration of a loop is taken out of it, so that work beside the loop is fused "
        "with it and not repeated."
    ),
    "duplicate_mapped_scale": (
        "A scale or shift with several readers is copied for one of them. The copy can then move "
        "by itself."
    ),
    "fuse_consecutive_elementwise": "Two elementwise operators in a row become one expression.",
    "recompute_producer": (
        "A list that is cheap to make is made a second time for one of its readers. The copy can "
        "then be fused with that reader."
    ),
    "rederive_list": (
        "A stored list is computed again, element by element, from another list that its reader "
        "loads anyway. One list less is stored."
    ),
    "interchange_loops": (
        "An outer and an inner loop change places, so that the outer one is the loop of the reader "
        "and both can be fused."
    ),
    "swap_row_column_scale": (
        "A scale of rows and a scale of columns change places. The scale of rows can then move "
        "behind the product."
    ),
    "drop_softmax_shift": (
        "A shift that softmax does not depend on is dropped. The safety pass restores the "
        "protection that it gave."
    ),
    "expand_square_of_shift": (
        "The sum of squared differences becomes sums of squares and of values, which need no mean "
        "beforehand. The safety pass keeps it exact."
    ),
}
"""By the names of rules; a rule of a user's own has its docstring alone."""
