"""A two-layer transformer over packed sequences, on a CPU."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import task

WIDTH, HEADS, LAYERS = 64, 4, 2
LONGEST = task.PROMPT_TOKENS + task.ANSWER_TOKENS


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """hidden: float32 [B, L, WIDTH]. allowed: bool [B, 1, L, L], True where row t may read column s."""
        b, length, _ = hidden.shape
        qkv = self.qkv(self.norm_attention(hidden)).view(b, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, HEADS, L, WIDTH / HEADS]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(b, length, WIDTH))
        result: Tensor = hidden + self.perceptron(self.norm_perceptron(hidden))
        return result


class Policy(nn.Module):
    """Logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(task.N_TOKENS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, task.N_TOKENS)

    def forward(self, tokens: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """Return logits, float32 [B, L, N_TOKENS]. All arguments: int64 [B, L], as a packed batch has them."""
        length = tokens.shape[1]
        is_causal = torch.ones(length, length, dtype=torch.bool).tril()
        is_same_document = segment_ids[:, :, None] == segment_ids[:, None, :]
        allowed = (is_causal & is_same_document)[:, None]
        hidden = self.token(tokens) + self.position(position_ids)
        for block in self.blocks:
            hidden = block(hidden, allowed)
        logits: Tensor = self.logits(self.norm(hidden))
        return logits


def token_logprobs(policy: Policy, tokens: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Return the log-probability of each token after those before it, float32 [B, L]; 0 at the first of each row."""
    logits = policy(tokens, position_ids, segment_ids)
    logprobs = functional.log_softmax(logits[:, :-1], dim=-1)
    chosen = logprobs.gather(-1, tokens[:, 1:, None])[..., 0]
    return functional.pad(chosen, (1, 0))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy sampled after a prompt, END included, and the log-probability of each token."""

    tokens: list[int]
    logprobs: list[float]


@torch.no_grad()
def answers(policy: Policy, prompts: Tensor, generator: torch.Generator | None) -> list[Answer]:
    """Return an answer to each prompt, int64 [n, PROMPT_TOKENS]. Without a generator: the likeliest token each time."""
    n = len(prompts)
    tokens, steps = prompts, []
    for _ in range(task.ANSWER_TOKENS):
        positions = torch.arange(tokens.shape[1]).expand(n, -1)
        logits = policy(tokens, positions, torch.ones_like(tokens))[:, -1]
        logprobs = functional.log_softmax(logits, dim=-1)
        if generator is None:
            sampled = logprobs.argmax(dim=-1, keepdim=True)
        else:
            sampled = torch.multinomial(logprobs.exp(), 1, generator=generator)
        steps.append(logprobs.gather(-1, sampled))
        tokens = torch.cat([tokens, sampled], dim=1)

    sampled_tokens = tokens[:, task.PROMPT_TOKENS :].tolist()
    sampled_logprobs = torch.cat(steps, dim=1).tolist()
    return [_to_end(*pair) for pair in zip(sampled_tokens, sampled_logprobs, strict=True)]


def _to_end(tokens: list[int], logprobs: list[float]) -> Answer:
    n = len(tokens)
    if task.END in tokens:
        n = tokens.index(task.END) + 1
    return Answer(tokens[:n], logprobs[:n])


def accuracy(policy: Policy, questions: list[task.Sum]) -> float:
    """Return the share of sums whose likeliest answer is right."""
    replies = answers(policy, torch.from_numpy(task.prompts(questions)), None)
    is_right = [reply.tokens == question.answer() for reply, question in zip(replies, questions, strict=True)]
    return sum(is_right) / len(is_right)


def warmed_up(seed: int, steps: int) -> Policy:
    """Return a policy that was shown right answers for some steps, so that some of its samples earn a reward."""
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
    questions = task.sums(held_out=False)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(questions), (128,), generator=draw).tolist()
        rows = [_row(questions[number]) for number in chosen]
        tokens = torch.tensor(rows)
        positions = torch.arange(LONGEST).expand(len(rows), -1)
        logprobs = token_logprobs(policy, tokens, positions, torch.ones_like(tokens))
        is_answer = (positions >= task.PROMPT_TOKENS) & (tokens != task.PAD)
        loss = -(logprobs * is_answer).sum() / is_answer.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return policy


def _row(question: task.Sum) -> list[int]:
    tokens = [*question.prompt(), *question.answer()]
    return tokens + [task.PAD] * (LONGEST - len(tokens))
