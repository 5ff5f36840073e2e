"""The backward of a part, whole or in two halves: B, the gradients of the inputs, and W, those of the weights.

On the way from the outputs to the inputs, the nodes with a branch that leads to weights alone are where W begins: B
notes the gradients that come to them, and W runs the branches.
"""

import functools

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ._modules import register_hook


def full(outputs, grads, inputs):
    """The gradients of the inputs, of which this is the last use; adds those of the weights to `grad` of the leaves."""
    raw = {}  # by input: the gradient, if `grad` will be a copy with other strides
    for v in inputs:
        if v.requires_grad:
            register_hook(v, functools.partial(_note, raw, id(v), v.stride()))
    if outputs:
        torch.autograd.backward(outputs, grads)
    found = [raw.get(id(v), v.grad) for v in inputs]
    for v in inputs:
        v.grad = None
    return found


def _note(raw, key, stride, grad):
    if grad is not None and grad.stride() != stride:
        raw[key] = grad


class Weights:
    """The second half of a backward: the gradients of the weights, added up as autograd does it."""

    def __init__(self, branches):
        self._branches = branches

    def run(self):
        for branch in self._branches:
            branch.run()
        self._branches = []

    def shares(self):
        """Gradients that B noted."""
        return [grad for branch in self._branches for grad in branch.grads if grad is not None]


class Whole:
    """The second half where the first one had nothing to compute."""

    def __init__(self, outputs, grads):
        self._pairs = outputs, grads

    def run(self):
        full(*self._pairs, [])
        self._pairs = [], []

    def shares(self):
        return []


def split(outputs, grads, inputs):
    """The gradients of the inputs, and the second half; None if this graph cannot be cut.

    It can be where each weight has one branch from the way to the inputs. Several would be one sum, in an order that
    only a whole backward knows.
    """
    wanted = [v for v in inputs if v.requires_grad]
    if not wanted or not outputs:
        return [None] * len(inputs), Whole(outputs, grads)
    targets = {get_gradient_edge(v).node for v in wanted}
    branches = _branches_of(outputs, targets)
    if branches is None:
        return None
    handles = [branch.watch() for branch in branches]
    try:
        found = _input_grads(outputs, grads, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found, Weights(branches)


def _input_grads(outputs, grads, inputs):
    """With the graph kept, for the second half."""
    wanted = [v for v in inputs if v.requires_grad]
    if not wanted or not outputs:
        return [None] * len(inputs)
    found = torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)
    found = dict(zip(map(id, wanted), found))
    return [found.get(id(v)) for v in inputs]


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

    def run(self):
        pairs = [(GradientEdge(self.node, i), grad) for i, grad in enumerate(self.grads) if grad is not None]
        if pairs:
            weights = [leaf.variable for leaf in self.leaves]
            # These gradients have already passed the program's own hooks on the node. The hooks run again here, and
            # this one, the last, replaces their result.
            handle = self.node.register_prehook(lambda _: tuple(self.grads))
            try:
                torch.autograd.backward([edge for edge, _ in pairs], [grad for _, grad in pairs], inputs=weights)
            finally:
                handle.remove()


# Compilation makes both halves one; a reentrant checkpoint hides the weights.
_whole_functions = ("CompiledFunctionBackward", "CheckpointFunctionBackward")


def _branches_of(outputs, targets):
    """None: there is more than one way to a weight, or a function that cannot be run again for the weights."""
    if any(o.grad_fn is None and get_gradient_edge(o).node not in targets for o in outputs):
        return None  # an output is a weight itself
    roots = [o.grad_fn for o in outputs if o.grad_fn is not None]
    order, leads = _walk(roots, targets)
    if not all(leads[root] for root in roots):
        return None  # an output depends on weights alone
    reached = {}  # by node: the leaves below it; only of nodes that do not lead to an input
    branches, seen = [], set()
    for node in order:  # children first
        is_python = isinstance(node, BackwardCFunction)
        if is_python and type(node).__name__ in _whole_functions:
            return None
        children = [child for child, _ in node.next_functions if child is not None]
        if leads[node]:
            leaves = set().union(*(reached[c] for c in children if not leads[c]))
            if not leaves:
                continue
            if is_python or not seen.isdisjoint(leaves) or _fails_alone(node):
                return None
            seen |= leaves
            branches.append(_Branch(node, leaves))
        elif hasattr(node, "variable"):
            reached[node] = {node}
        elif len(children) == 1:
            reached[node] = reached[children[0]]
        else:
            reached[node] = set().union(*(reached[c] for c in children))
    return branches


def _fails_alone(node):
    """Whether torch would crash: for channels-last inputs, the backward of a group norm writes the gradient of the input
    also when only those of the weights are wanted."""
    return type(node).__name__ == "NativeGroupNormBackward0" and not node._saved_input.is_contiguous()


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


class Again:
    """A second half that runs the whole backward once more, for all leaves but the inputs, or for `beside` as well."""

    def __init__(self, outputs, grads, weights, beside, retained):
        self._pairs = outputs, grads
        self._weights = weights
        self._beside = beside
        self._retained = retained

    def run(self):
        for v in self._retained:
            v.grad = None  # It comes once more.
        if self._pairs[0]:
            torch.autograd.backward(*self._pairs, inputs=self._weights + self._beside)
        for v in self._beside:
            v.grad = None
        self._pairs, self._beside, self._retained = ([], []), [], []

    def shares(self):
        return self._pairs[1]


def again(outputs, grads, inputs, retained):
    """As split(), for a graph that cannot be cut. `retained`: its tensors with a gradient of their own."""
    order, _ = _walk([o.grad_fn for o in outputs if o.grad_fn is not None], ())
    wanted = [v for v in inputs if v.requires_grad]
    beside = wanted if any(map(_fails_alone, order)) else []
    weights = [leaf for leaf in _leaves_in(order) if all(leaf is not v for v in wanted)]
    return _input_grads(outputs, grads, inputs), Again(outputs, grads, weights, beside, retained)


def leaves_of(outputs):
    """The leaves on which the outputs depend and that get a gradient."""
    order, _ = _walk([o.grad_fn for o in outputs if o.grad_fn is not None], ())
    return _leaves_in(order)


def _leaves_in(nodes):
    return [node.variable for node in nodes if hasattr(node, "variable")]
