"""Follow the log with a stream of Spark: apply its micro-batches to a read model."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame

from seriatim.pipeline.spark_errors import SPARK_ERRORS, silence_spark_errors, to_seriatim_error

ApplyBatch = Callable[[DataFrame, int], int]


class LiveStream:
    """A running stream of a projection's events.

    The cursor in the read model is authoritative. The checkpoint directory holds only Spark's
    internal state, so it may be lost, outdated or temporary.
    """

    def __init__(
        self,
        name: str,
        events: DataFrame,
        position: int,
        apply: ApplyBatch,
        checkpoint: str | None,
    ) -> None:
        """Start the stream.

        Args:
            name: The name of the projection.
            events: The stream of its events, with watermarks.
            position: The position after which the stream starts.
            apply: Applies a batch after a position, and returns the new position.
            checkpoint: Spark's checkpoint directory; None creates a temporary one.

        """
        self._position = position
        self._apply = apply
        self._raised: BaseException | None = None
        self._temporary = checkpoint is None
        self._folder = Path(checkpoint or tempfile.mkdtemp(prefix="seriatim-checkpoint-"))
        self._query = (
            events.writeStream.foreachBatch(self._apply_batch)
            .queryName(f"seriatim_{name}_{time.monotonic_ns()}")
            .option("checkpointLocation", str(self._folder))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _apply_batch(self, batch: DataFrame, _batch_id: int) -> None:
        # Batch ids start at 0 with a new checkpoint directory, so only the position protects
        # against applying a batch twice.
        try:
            with silence_spark_errors():  # this runs in a thread of Spark's
                self._position = self._apply(batch, self._position)
        except BaseException as error:
            # Spark passes on only the text of this error: keep the error itself for `wait_ended`.
            self._raised = error
            raise

    def wait_ended(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds; return whether the stream ended, or raise its error."""
        try:
            # Spark's annotation asks for whole seconds, but it accepts fractions.
            return bool(self._query.awaitTermination(within_s))  # type: ignore[arg-type]
        except SPARK_ERRORS as error:
            # Spark's error only quotes the one that a batch raised.
            raised = error if self._raised is None else self._raised
            if isinstance(raised, SPARK_ERRORS):
                raise to_seriatim_error(raised) from None
            raise raised from None
