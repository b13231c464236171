#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small corpus of learnable text: DOCUMENTS documents of odd, very unequal lengths, one a line.
usage: corpus.py FILE DOCUMENTS SEED"""
import random, sys

WORDS = "the ring sends what the mask forbids and every rank adds its part of the sum in order while a lane waits".split()

def main():
    rng = random.Random(int(sys.argv[3]))
    with open(sys.argv[1], "w") as out:
        for i in range(int(sys.argv[2])):
            length = rng.choice([2, 3, 17, 41, 127, 129, 255, 301])
            text, word = "", rng.randrange(len(WORDS))
            while len(text) < length:
                text += WORDS[word] + " "
                word = (word * 7 + rng.choice([1, 1, 1, 3])) % len(WORDS)  # mostly predictable
            out.write(text[:length].strip() + "\n")

main()
