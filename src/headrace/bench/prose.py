# SPDX-License-Identifier: Apache-2.0
"""Plain text that looks like English, endless and the same for the same seed. Its words are so common that
nearly every tokenizer has them whole; knows nothing of tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_NOUNS = _split(
    "river house garden window market teacher child road city table letter story winter summer morning "
    "evening family doctor farmer ship train engine machine school book paper field forest mountain bridge "
    "village street kitchen door wall tree horse bird dog cat fish stone island ocean cloud storm light "
    "shadow song picture company worker office factory museum library station airport hotel president "
    "student artist writer player captain soldier king queen army church temple castle tower valley lake "
    "beach desert planet star moon sun sky wind rain snow fire water earth air metal glass wood cotton "
    "bread sugar coffee tea milk butter fruit apple orange cup plate knife box bag coat shirt shoe hat"
)
_ADJECTIVES = _split(
    "old new small large quiet bright dark warm cold early late long short green blue red white black "
    "heavy light simple strange famous common rare young wise gentle strong broken empty full open hidden "
    "distant local foreign public private narrow wide deep clean fresh sweet dry wet soft hard"
)
_VERBS = _split(
    "found saw built carried watched followed opened closed moved crossed painted reached left visited "
    "remembered described changed kept lost bought sold wanted needed liked loved feared helped stopped "
    "started finished studied measured covered filled joined passed touched turned used"
)
_PLACES = _split("near behind under above beside inside outside beyond across along through toward")
_JOINTS = _split("and but while because until before after since although when where so")
_ARTICLES = _split("the a this that every one another some")


def words_of(*seed: object) -> Iterator[str]:
    """Words of sentences without end; the last word of each has its full stop."""
    draw = random.Random("/".join(str(part) for part in seed))
    while True:
        clauses = [list(_clause(draw)) for _ in range(draw.choice((1, 1, 2)))]
        sentence = clauses[0]
        for clause in clauses[1:]:
            sentence += [draw.choice(_JOINTS), *clause]
        yield sentence[0].capitalize()
        yield from sentence[1:-1]
        yield f"{sentence[-1]}."


def _clause(draw: random.Random) -> Iterator[str]:
    yield from _thing(draw)
    yield draw.choice(_VERBS)
    yield from _thing(draw)
    if draw.random() < 0.6:
        yield draw.choice(_PLACES)
        yield from _thing(draw)


def _thing(draw: random.Random) -> Iterator[str]:
    yield draw.choice(_ARTICLES)
    if draw.random() < 0.7:
        yield draw.choice(_ADJECTIVES)
    yield draw.choice(_NOUNS)
