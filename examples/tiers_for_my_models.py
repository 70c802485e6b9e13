"""Certified tiers of three scikit-learn models, on examples that trained none of them."""

import skops.io
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import slotool

learn, measure = train_test_split(load_digits(as_frame=True).frame, test_size=0.6, random_state=0)
measure.to_parquet("digits.parquet")
models = {"fast": LogisticRegression(C=0.01), "near": KNeighborsClassifier(3), "forest": RandomForestClassifier(100)}
for name, model in models.items():
    skops.io.dump(model.fit(learn.drop(columns="target").to_numpy("float32"), learn["target"]), f"{name}.skops")
made = slotool.family({name: f"{name}.skops" for name in models}, "digits.parquet:target", out="family", repeats=1)
rules = slotool.gen_rules(made.outcomes, "rules.json", tolerance_kind="absolute", confidence=0.95)
print(made, rules, sep="\n")
