"""Plan and samples to a batch: segments, positions, targets, the rule; collate."""

from padless.rows.assemble import batch_from_segments
from padless.rows.batch import IGNORED, Batch
from padless.rows.collate import collate
from padless.rows.media import MediaLayout
from padless.rows.media_collate import collate_media
from padless.rows.rule import Rule

__all__ = ["IGNORED", "Batch", "MediaLayout", "Rule", "batch_from_segments", "collate", "collate_media"]
