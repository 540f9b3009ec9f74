"""Says how far in event time the rows are that a link has carried."""

from sbon.links.batch import Batch
from sbon.watermarks import WATERMARK_MIN


class RowTimes:
    """Follows the batches of a link in their order, and knows for which watermark their rows had been made.

    A large answer is sent in parts. Only its last part has the answer's watermark; the others have that of the answer before.

    Parameters
    ----------
    is_first : False if earlier batches of the link are not known
    """

    __slots__ = ("last_us", "until_us")

    def __init__(self, *, is_first: bool) -> None:
        self.last_us = WATERMARK_MIN if is_first else None
        """The watermark of the last batch, in microseconds; `WATERMARK_MIN` if there was none, None if unknown."""
        self.until_us = WATERMARK_MIN if is_first else None
        """A watermark, in microseconds, that all rows so far had been made for; `WATERMARK_MIN` if there were none. None if the last row
        may be in the first parts of an answer, so that only a later batch tells."""

    def copy(self) -> "RowTimes":
        """Returns another one that is as far."""
        other = RowTimes(is_first=False)
        other.last_us, other.until_us = self.last_us, self.until_us
        return other

    def take(self, batch: Batch) -> None:
        """Takes the next batch."""
        rises = self.last_us is not None and batch.watermark_us > self.last_us
        if batch.rows:
            self.until_us = batch.watermark_us if rises else None
        elif rises and self.until_us is None:
            self.until_us = batch.watermark_us
        self.last_us = batch.watermark_us
