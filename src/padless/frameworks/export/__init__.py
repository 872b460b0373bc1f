"""Packed rows written in other people's file formats."""

from padless.frameworks.export.job import FORMATS, Export, export

__all__ = ["FORMATS", "Export", "export"]
