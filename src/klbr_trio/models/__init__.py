"""The models: one door to every OpenAI-compatible provider.

`LlmClient.complete` asks for one step of a turn. Inside, `request` turns messages into what the
strictest provider accepts, `stream` turns bytes into a reply without doing I/O, `failure` says what
went wrong and what is done about it, and `client`, `exchange` and `gate` are the thin layer of I/O
around them.
"""

from __future__ import annotations

from klbr_trio.models.client import LlmClient
from klbr_trio.models.config import ModelConfig, ModelsConfig
from klbr_trio.models.examine import Finding, examine
from klbr_trio.models.messages import (
    Assistant,
    Message,
    ModelRequest,
    PastCall,
    System,
    ToolResult,
    User,
)
from klbr_trio.models.reply import Lane, Reply, ToolCall
from klbr_trio.models.request.address import public_url

__all__ = [
    "Assistant",
    "Finding",
    "Lane",
    "LlmClient",
    "Message",
    "ModelConfig",
    "ModelRequest",
    "ModelsConfig",
    "PastCall",
    "Reply",
    "System",
    "ToolCall",
    "ToolResult",
    "User",
    "examine",
    "public_url",
]
