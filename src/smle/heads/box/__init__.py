"""The paper: an embedding, clipped to a learned box, and affine heads that obey the rules over all of it.

From the bottom up: `proof` and `program`, what is proved and what runs; `algorithms`, Algorithm 1 and its parts;
`network`, the box in torch; `training`, Algorithm 2; `estimators`, its door to scikit-learn.
"""
