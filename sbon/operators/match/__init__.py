"""Matches row patterns: MATCH_RECOGNIZE.

- lane: a partition (PARTITION BY), by its number.
- position: index of a row in the log (`log`). Place: index of a row in its partition or in another sequence; in a program, a step of the
  pattern that waits for a row (`program`).
- start: a row where a match may begin. It is settled when no later row can change its outcome, and open until then.
- attempt: a start where AFTER MATCH SKIP of earlier matches lets a match begin.
- way: one of the possible paths of a start's rows through the pattern.
- label: the variable that a row of a match was taken for.
- ready: a row whose conditions are known. Known: the instant at which a row or a watermark makes an outcome certain (`partitions`).
"""
