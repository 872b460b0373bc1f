"""What a Transformers model's config says about its images and videos: read, never guessed from the model's name."""

from typing import Any

from padless.rows import MediaLayout


def media_layout(model: Any) -> MediaLayout | None:
    """The layout of a model of the Qwen-VL family, or None for models with one axis of positions.

    Args:
        model: A model or its config.

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> media_layout(tiny_model("qwen2_5_vl"))
        MediaLayout(image_token=90, video_token=91, merge=2, time_step=4.0, frames_apart=False, window=2)
        >>> media_layout(tiny_model("llama")) is None
        True
    """
    config = getattr(model, "config", model)
    vision, image_token = getattr(config, "vision_config", None), getattr(config, "image_token_id", None)
    if vision is None or image_token is None or not rotates_by_three(config):
        return None
    merge = int(vision.spatial_merge_size)
    window = getattr(vision, "window_size", None)
    return MediaLayout(
        image_token=image_token,
        video_token=getattr(config, "video_token_id", None),
        merge=merge,
        time_step=float(getattr(vision, "tokens_per_second", 1.0)),
        frames_apart=not hasattr(vision, "tokens_per_second") and hasattr(vision, "num_position_embeddings"),
        window=None if window is None else window // merge // vision.patch_size,
    )


def rotates_by_three(config: Any) -> bool:
    """Whether the text model rotates by time, height and width (M-RoPE)."""
    text = config.get_text_config()
    tables = (getattr(text, "rope_parameters", None), getattr(text, "rope_scaling", None))
    return any(isinstance(table, dict) and table.get("mrope_section") for table in tables)
