"""Records with images: JSON lines, Parquet, Arrow, WebDataset shards, LeRobot data sets. Nothing is decoded early."""

from padless.corpus.multimodal.images import ImageRef
from padless.corpus.multimodal.lerobot import Step, read_steps
from padless.corpus.multimodal.records import MediaRecord, read_media

__all__ = ["ImageRef", "MediaRecord", "Step", "read_media", "read_steps"]
