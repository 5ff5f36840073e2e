"""The backward of a part, whole or in two halves: B, the gradients of the inputs, and W, those of the weights.

The halves use torch's public autograd alone. On the way from the outputs to the inputs, the nodes with a branch
that leads to weights alone are where W begins: B notes the gradients that come to them, and W runs the branches.
"""

import contextlib
import functools

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge


def full(outputs, grads, inputs):
    """The gradients of the inputs; adds those of the weights to `grad` of the leaves."""
    pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
    raw = {}  # by input: the gradient, if `grad` will be a copy with other strides
    wanted = [v for v in inputs if v.requires_grad]
    handles = [v.register_hook(functools.partial(_note, raw, id(v), v.stride())) for v in wanted]
    try:
        if pairs:
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
    finally:
        for handle in handles:
            handle.remove()
    found = [raw.get(id(v), v.grad) for v in inputs]
    for v in wanted:
        v.grad = None
    return found


def _note(raw, key, stride, grad):
    if grad.stride() != stride:
        raw[key] = grad


class Halves:
    """A backward whose W runs later."""

    def __init__(self, outputs, grads, inputs):
        pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
        outputs, grads = [o for o, _ in pairs], [g for _, g in pairs]
        wanted = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad]
        self._late = None if wanted else (outputs, grads)
        if not wanted:
            self.input_grads = [None] * len(inputs)
            return
        targets = {get_gradient_edge(v).node for v in wanted}
        self._branches = _branches_of(outputs, grads, targets)
        handles = [branch.watch() for branch in self._branches]
        try:
            found = dict(
                zip(
                    map(id, wanted),
                    torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)
                    if outputs
                    else (),
                )
            )
        finally:
            for handle in handles:
                handle.remove()
        self.input_grads = [found.get(id(v)) for v in inputs]

    def run_weights(self):
        """Adds the gradients of the weights to `grad` of the leaves, as autograd does it."""
        if self._late is not None:
            full(*self._late, [])
            self._late = None
            return
        for group in _joined(self._branches):
            _run(group)
        self._branches = []


class _Branch:
    """A node on the way to the inputs, and the leaves that it reaches beside it."""

    def __init__(self, node, leaves):
        self.node = node
        self.leaves = leaves
        self.grads = ()

    def watch(self):
        def note(grads):
            self.grads = grads

        return self.node.register_prehook(note)

    def known(self, grads):
        """A prehook that puts what B noted in the place of what comes."""
        return self.grads + (None,) * (len(grads) - len(self.grads))


def _branches_of(outputs, grads, targets):
    order, leads = _walk([o.grad_fn for o in outputs if o.grad_fn is not None], targets)
    reached = {}  # by node: the leaves below it; only of nodes that do not lead to an input
    branches = []
    for node in order:  # children first
        children = [child for child, _ in node.next_functions if child is not None]
        if leads[node]:
            leaves = set().union(*(reached[c] for c in children if not leads[c]))
            if leaves:
                branches.append(_Branch(node, leaves))
        elif hasattr(node, "variable"):
            reached[node] = {node}
        elif len(children) == 1:
            reached[node] = reached[children[0]]
        else:
            reached[node] = set().union(*(reached[c] for c in children))
    for output, grad in zip(outputs, grads):
        # Outputs that do not depend on an input: B does not come there.
        node = output.grad_fn
        if node is not None and reached.get(node):
            branch = _Branch(node, reached[node])
            branch.grads = (None,) * output.output_nr + (grad,)
            branches.append(branch)
    return branches


def _walk(roots, targets):
    """All nodes, children before parents, and which of them lead to a target."""
    order, leads, stack, seen = [], {}, list(roots), set()
    while stack:
        node = stack[-1]
        if node in leads:
            stack.pop()
        elif node in seen:
            stack.pop()
            leads[node] = node in targets or any(
                leads[child] for child, _ in node.next_functions if child is not None
            )
            order.append(node)
        else:
            seen.add(node)
            stack += [child for child, _ in node.next_functions if child is not None and child not in leads]
    return order, leads


def _joined(branches):
    """Groups of branches that share no leaf."""
    groups = {}  # by leaf
    for branch in branches:
        mine = [branch]
        for other in {id(groups[leaf]): groups[leaf] for leaf in branch.leaves if leaf in groups}.values():
            mine += other
        for leaf in set().union(*(b.leaves for b in mine)):
            groups[leaf] = mine
    return list({id(group): group for group in groups.values()}.values())


def _run(group):
    edges, grads = [], []
    for branch in group:
        for i, grad in enumerate(branch.grads):
            if grad is not None:
                edges.append(GradientEdge(branch.node, i))
                grads.append(grad)
    if not edges:
        return
    leaves = list({id(leaf): leaf.variable for branch in group for leaf in branch.leaves}.values())
    with contextlib.ExitStack() as held:
        if len(group) > 1:
            # One branch may lie behind another: what flows between them is counted already.
            for branch in group:
                held.callback(branch.node.register_prehook(branch.known).remove)
        torch.autograd.backward(edges, grads, inputs=leaves)


class Again:
    """A backward whose W runs all of it once more, for the weights alone."""

    def __init__(self, outputs, grads, inputs, weights):
        pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
        self._late = [o for o, _ in pairs], [g for _, g in pairs]
        self._weights = weights
        wanted = [v for v in inputs if v.requires_grad]
        found = {}
        if pairs and wanted:
            grads = torch.autograd.grad(self._late[0], wanted, self._late[1], retain_graph=True, allow_unused=True)
            found = dict(zip(map(id, wanted), grads))
        self.input_grads = [found.get(id(v)) for v in inputs]

    def run_weights(self):
        if self._late[0]:
            torch.autograd.backward(*self._late, inputs=self._weights)


def leaves_of(outputs):
    """The leaves on which the outputs depend and that get a gradient."""
    order, _ = _walk([o.grad_fn for o in outputs if o.grad_fn is not None], ())
    return [node.variable for node in order if hasattr(node, "variable")]
