"""The paper's head: an embedding clipped to a learned box, and affine heads that obey the rules over the whole box.

`proof` and `box_program`: what is proved and what runs. `algorithms`: Algorithm 1 and its parts. `network`: the box in
torch. `training`: Algorithm 2. `estimators`: the scikit-learn interface.
"""
