"""The order in plain Python integers, written from docs/order.md alone: slow, short, and the judge of the
vectorised code. It imports nothing from `loader`."""

import functools
import hashlib
import math
from collections import Counter, deque
from fractions import Fraction

M64 = 2**64


def key(seed, name, purpose, epoch, *ids):
    data = b""
    for part in (seed, name, purpose, epoch, *ids):
        text = ("s" + part if isinstance(part, str) else f"i{part}").encode()
        data += len(text).to_bytes(4, "little") + text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % M64
    return z ^ (z >> 31)


def sub(k, a):
    return mix64((k + (a + 1) * 0x9E3779B97F4A7C15) % M64)


def perm(k, n, x):
    if n <= 128:
        return sorted(range(n), key=lambda a: sub(k, a))[x]
    a = math.isqrt(n) if math.isqrt(n) ** 2 == n else math.isqrt(n) + 1
    b = math.ceil(Fraction(n, a))
    while True:
        left, right = divmod(x, b)
        for r in range(8):
            if r % 2 == 0:
                left = (left + sub(sub(k, r), right)) % a
            else:
                right = (right + sub(sub(k, r), left)) % b
        x = left * b + right
        if x < n:
            return x


def locate(shape, seed, name, epoch, i):
    """shape = (N, c, D, h); the view ordinal at in-epoch position i."""
    n, c, lanes, h = shape
    chunks = n // c
    rounds = chunks // (lanes * h)
    groups = rounds * h
    body = lanes * groups * c
    tail = n - body

    def k(purpose):
        return key(seed, name, purpose, epoch)

    def deal(i, c, rounds, key_r, key_p, key_q, key_n):
        d, u = i % lanes, i // lanes
        tau, s = u // h, u % h
        lane = perm(sub(sub(key_r, d), tau), h, s)
        x = (tau + ((lane * lanes + d) * c) // (lanes * h)) % (rounds * c)
        kappa, y = x // c, x % c
        m = perm(key_p, key_n, d + lanes * (kappa * h + lane))
        return m * c + perm(sub(key_q, m), c, y)

    if i < body:
        ordinal = deal(i, c, rounds, k("R"), k("P"), k("Q"), chunks)
    else:
        i -= body
        c2 = tail // (lanes * h)
        body2 = lanes * h * c2
        if i < body2:
            z = deal(i, c2, 1, k("R2"), k("P2"), k("Q2"), lanes * h)
        else:
            z = body2 + perm(k("T"), tail - body2, i - body2)
        z = (z + k("rot2") % tail) % tail
        j = lanes * groups + z // c
        ordinal = (perm(k("P"), chunks, j) if j < chunks else chunks) * c + z % c
    return (ordinal + k("rot") % n) % n


def table(weights):
    """[(source name, how many of its entries came before)] for integer weights reduced by their gcd."""
    return _table(tuple(sorted(weights.items())))


@functools.cache
def _table(items):
    weights = dict(items)
    divisor = math.gcd(*weights.values())
    quotas = {name: weight // divisor for name, weight in sorted(weights.items()) if weight}
    total = sum(quotas.values())
    counts = dict.fromkeys(quotas, 0)
    out = []
    for t in range(1, total + 1):
        due = [name for name, q in quotas.items() if counts[name] * total < t * q]
        name = min(due, key=lambda name: (Fraction(counts[name] + 1, quotas[name]), name))
        out.append((name, counts[name]))
        counts[name] += 1
    return out


def stream(segments, batch, step):
    """The stream order of a step: [(source name, i_k)]. segments: [(start step, weights)], first at 0. batch: a number,
    or [a number per segment]."""
    base, out = {}, []
    batches = batch if isinstance(batch, list) else [batch] * len(segments)
    for number, (start, weights) in enumerate(segments):
        entries, batch = table(weights), batches[number]
        end = segments[number + 1][0] if number + 1 < len(segments) else step + 1
        here = min(end, step + 1)
        if start > step:
            break
        quotas = Counter(name for name, _ in entries)
        if here == step + 1:
            for p in range((step - start) * batch, (step - start + 1) * batch):
                cycle, r = divmod(p, len(entries))
                name, rank = entries[r]
                out.append((name, base.get(name, 0) + cycle * quotas[name] + rank))
        else:
            cycle, rest = divmod((end - start) * batch, len(entries))
            for name in quotas:
                begun = sum(1 for other, _ in entries[:rest] if other == name)
                base[name] = base.get(name, 0) + cycle * quotas[name] + begun
    return out


def canonical(slots, shapes):
    """Stream order -> canonical order. slots: [(source name, i_k)]; instead of i_k also a tuple that begins with the
    position in the epoch. shapes: name -> (N, c, D, h)."""

    def group(slot):
        name, position = slot
        n, _, lanes, _ = shapes[name]
        d = (position[0] if isinstance(position, tuple) else position % n) % lanes
        bits = lanes.bit_length() - 1
        return Fraction(int(format(d, f"0{bits}b")[::-1], 2) if bits else 0, lanes)

    return sorted(slots, key=group)


def batch(seed, size, shapes, segments, step):
    """The global batch of a step in canonical order: [(source name, i_k, epoch, view ordinal)]."""
    out = []
    for name, position in canonical(stream(segments, size, step), shapes):
        epoch, i = divmod(position, shapes[name][0])
        out.append((name, position, epoch, locate(shapes[name], seed, name, epoch, i)))
    return out


def mask_batch(seed, size, name, shape, step, first_step=0):
    """The batch of a step with boundary="mask": [(i_k, epoch, view ordinal)], -1 for what padding does not have.

    first_step: the step with which epoch 0 begins.
    """
    n, _, lanes, _ = shape
    bits = lanes.bit_length() - 1
    epoch, here = divmod(step - first_step, math.ceil(Fraction(n, size)))
    positions = range(here * size, here * size + size)
    positions = sorted(positions, key=lambda i: int(format(i % lanes, f"0{bits}b")[::-1], 2) if bits else 0)
    return [
        (epoch * n + i, epoch, locate(shape, seed, name, epoch, i)) if i < n else (-1, epoch, -1)
        for i in positions
    ]


def growth_stream(name, sizes, growths, count, wholes=None):
    """The first `count` positions of a source that grows, written out: [(view, epoch, position in it)]. sizes: view ->
    samples; growths: the positions at which they take effect, ascending. wholes: the whole view of each growth, first
    that of growth 0; None where a bucket has no samples."""
    out, queue, epoch, number = [], deque(), 0, 0
    wholes = wholes or [f"{name}#{at}" if at else name for at in range(len(growths) + 1)]
    left = list(growths)
    while len(out) < count:
        while left and left[0] == len(out):
            left.pop(0)
            number += 1
            if wholes[number] is None:
                queue.clear()  # all of them were removed
            if queue:  # of the epoch that is not over
                new = [(f"{name}+{number}", epoch - 1, i) for i in range(sizes.get(f"{name}+{number}", 0))]
                total, old = len(queue) + len(new), iter(queue)
                queue, news = deque(), iter(new)
                for j in range(total):
                    due = math.floor(Fraction((j + 1) * len(new), total))
                    queue.append(next(news) if due > math.floor(Fraction(j * len(new), total)) else next(old))
        if not queue:
            view = wholes[number]
            queue = deque((view, epoch, i) for i in range(sizes[view]))
            epoch += 1
        out.append(queue.popleft())
    return out


def turn_shares(weights, sizes, batches):
    """Bucket -> its share of the steps. weights: source -> weight. sizes: bucket -> source -> samples."""
    totals = {source: sum(held.get(source, 0) for held in sizes.values()) for source in weights}
    exact = {}
    for label, held in sizes.items():
        drawn = sum(Fraction(w * held.get(source, 0), totals[source]) for source, w in weights.items() if w)
        if drawn:
            exact[label] = drawn / batches[label]
    total = sum(exact.values())
    scale = math.lcm(*(share.denominator for share in exact.values()))
    whole = {label: int(share * scale) for label, share in exact.items()}
    divisor = math.gcd(*whole.values())
    if sum(whole.values()) // divisor > 65536:
        whole = {label: math.ceil(share * (65536 - len(exact)) / total) for label, share in exact.items()}
        divisor = math.gcd(*whole.values())
    return {label: share // divisor for label, share in whole.items()}


def turn(segments, sizes, batches, step):
    """(bucket, how many earlier steps were its own). segments: [(start step, weights of sources)]. sizes: bucket ->
    source -> samples, or [such a mapping per segment]; batches: bucket -> slots, or a list too."""
    sizes = sizes if isinstance(sizes, list) else [sizes] * len(segments)
    batches = batches if isinstance(batches, list) else [batches] * len(segments)
    dealt = [
        (start, turn_shares(weights, held, batch))
        for (start, weights), held, batch in zip(segments, sizes, batches, strict=True)
    ]
    return stream(dealt, 1, step)[0]


def bucket_stream(segments, sizes, batches, turns):
    """Of the last step (bucket, [(source/bucket, i_k)] in stream order). sizes: [bucket -> source -> samples, per
    segment]; batches: [bucket -> slots, per segment]. turns: of this step and of all before it."""
    label, own = turns[-1]
    mixed, slots = [], []
    for (start, weights), held, batch in zip(segments, sizes, batches, strict=True):
        here = {
            f"{source}/{label}": w for source, w in weights.items() if w and source in held.get(label, {})
        }
        if here:
            mixed.append((sum(one == label for one, _ in turns[:start]), here))
            slots.append(batch[label])
    return label, stream(mixed, slots, own)


def bucket_growth(seed, batches, shapes, wholes, segments, sizes, grown, steps):
    """The batches of the first steps of a plan with buckets that grows, in canonical order: [(bucket, [(view, i_k,
    epoch, view ordinal)])]. shapes: view -> (N, c, D, h). wholes: source/bucket -> as in `growth_stream`. sizes: as in
    `bucket_stream`. grown: source -> steps of its growths."""
    turns = [turn(segments, sizes, batches, step) for step in range(steps)]
    dealt = [bucket_stream(segments, sizes, batches, turns[: step + 1]) for step in range(steps)]
    counts, written = {view: shape[0] for view, shape in shapes.items()}, {}
    for name, views in wholes.items():
        source = name.rpartition("/")[0]
        starts = [sum(k == name for _, slots in dealt[:at] for k, _ in slots) for at in grown.get(source, ())]
        count = 1 + max((i for _, slots in dealt for k, i in slots if k == name), default=-1)
        written[name] = growth_stream(name, counts, starts, count, views)
    out = []
    for label, slots in dealt:
        placed = []
        for name, position in slots:
            view, epoch, i = written[name][position]
            placed.append((view, (i, epoch, position)))
        rows = []
        for view, (i, epoch, position) in canonical(placed, shapes):
            rows.append((view, position, epoch, locate(shapes[view], seed, view, epoch, i)))
        out.append((label, rows))
    return out


def bucket_batch(seed, batches, shapes, sizes, segments, step):
    """As `batch`, of a plan with buckets; also the bucket. shapes: "source/bucket" -> (N, c, D, h)."""
    label, own = turn(segments, sizes, batches, step)
    mixed = []
    for start, weights in segments:
        before = sum(turn(segments, sizes, batches, earlier)[0] == label for earlier in range(start))
        here = {f"{source}/{label}": w for source, w in weights.items() if w and source in sizes[label]}
        if here:
            mixed.append((before, here))
    return label, batch(seed, batches[label], shapes, mixed, own)


def packed(tokens, length, block=2**14):
    """Sequences of (document, start, length), by hand: blocks of documents, longest first, each into the fullest
    sequence that holds it."""
    out = []
    for first in range(0, len(tokens), block):
        pieces = []
        for document in range(first, min(first + block, len(tokens))):
            start = 0
            while start < tokens[document]:
                taken = min(length, tokens[document] - start)
                pieces.append((document, start, taken))
                start += taken
        opened = []
        for piece in sorted(pieces, key=lambda one: -one[2]):  # stable: of equal ones the first
            fitting = [some for some in opened if sum(p[2] for p in some) + piece[2] <= length]
            if fitting:
                max(fitting, key=lambda some: sum(p[2] for p in some)).append(
                    piece
                )  # of equal ones the first
            else:
                opened.append([piece])
        out += sorted(sorted(some) for some in opened)
    return out


def packed_groups(tokens, groups, length, block=2**14):
    """As `packed`, of documents that stay whole, those of one group in one sequence."""
    members = {}  # in the order of their first documents
    for document, group in enumerate(groups):
        if tokens[document]:
            members.setdefault(group, []).append(document)
    members = list(members.values())
    out = []
    for first in range(0, len(members), block):
        here = list(enumerate(members[first : first + block]))
        opened = []
        for number, documents in sorted(here, key=lambda one: -sum(tokens[n] for n in one[1])):
            size = sum(tokens[n] for n in documents)
            fitting = [some for some in opened if sum(s for s, _, _ in some) + size <= length]
            if fitting:
                max(fitting, key=lambda some: sum(s for s, _, _ in some)).append((size, number, documents))
            else:
                opened.append([(size, number, documents)])
        numbers = sorted(sorted(number for _, number, _ in one) for one in opened)
        out += [[(n, 0, tokens[n]) for number in some for n in here[number][1]] for some in numbers]
    return out
