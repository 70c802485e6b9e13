"""FMA's two tables, in small: headers of several lines, tracks in any order, genres as lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.data import load_multilabel
from slotool.errors import DataError

FEATURES = """feature,chroma_cens,chroma_cens,mfcc
statistics,kurtosis,mean,mean
number,01,01,01
track_id,,,
2,1.0,10.0,7
3,3.0,30.0,7
5,5.0,2e1,7
10,-1.0,0.0,7
134,0.5,1.5,7
200,0.5,1.5,7
"""
TRACKS = """,album,set,set,track,track
,title,split,subset,genres,genres_all
track_id,,,,,
134,"a ""title"", of two
lines",test,small,[12],"[12, 21]"
2,x,training,small,[21],[21]
3,x,training,small,[],[]
5,x,training,medium,"[1235]","[1235, 38]"
10,x,validation,large,[21],[21]
999,x,test,large,[15],[15]
"""


def write(folder: Path, features: str = FEATURES, tracks: str = TRACKS) -> Path:
    (folder / "features.csv").write_text(features)
    (folder / "tracks.csv").write_text(tracks)
    return folder


def test_features_genres_and_the_official_split(tmp_path: Path) -> None:
    data = load_multilabel(str(write(tmp_path)))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [2, 1, 1]
    assert (data.classes, data.input_shape, data.sparse, data.unlabelled) == (4, (3,), False, 1)
    assert data.train.x.dtype == np.float32
    # Genres 12, 21, 38, 1235, numbered in that order.
    assert [data.train.y.of(i).tolist() for i in range(2)] == [[1], [2, 3]]
    assert data.test.y.of(0).tolist() == [0, 1]
    # Tracks 2 and 5 train: means 3, 15, 7, deviations 2, 5, 0.
    assert data.train.x.tolist() == [[-1, -1, 0], [1, 1, 0]]
    assert data.test.x[0] == pytest.approx([-1.25, -2.7, 0.0])


@pytest.mark.parametrize(
    ("features", "tracks", "sentence"),
    [
        (FEATURES.replace("30.0", "loud"), TRACKS, "features.csv, track 3: chroma_cens mean 01 is no finite number"),
        (FEATURES.replace("30.0", "inf"), TRACKS, "features.csv, track 3: chroma_cens mean 01 is no finite number"),
        (FEATURES.replace("30.0,7", "30.0,7,8"), TRACKS, "features.csv: cannot be read"),
        (FEATURES.replace("statistics", "x"), TRACKS, "do not begin with feature, statistics, number"),
        (FEATURES.replace("\n3,", "\n2,"), TRACKS, "must number the tracks, each once"),
        (FEATURES, TRACKS.replace("genres_all", "other"), "name no column track, genres_all"),
        (FEATURES, TRACKS.replace("[21],[21]", "[21],21"), "tracks.csv, track 2: genres_all '21' is no list"),
        (FEATURES, TRACKS.replace("validation", "held out"), "tracks.csv, track 10: split 'held out' is none of"),
        (FEATURES, TRACKS.replace(",test,", ",training,"), "no test track has both features and genres"),
        (FEATURES, "", "tracks.csv: its first two lines name no column set, split"),
    ],
)
def test_damage_is_named(tmp_path: Path, features: str, tracks: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        load_multilabel(str(write(tmp_path, features, tracks)))
    assert sentence in str(caught.value)
