"""Parse the text of a filter, loosest binding first.

    selector   := or
    or         := and ( OR and )*
    and        := equality ( AND equality )*
    equality   := comparison ( '=' comparison | '<>' comparison | IS [NOT] NULL )*
    comparison := unary ( ('>'|'>='|'<'|'<=') unary
                        | [NOT] (CONTAINS|STARTSWITH|ENDSWITH) string
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN '(' string (',' string)* ')' )*
    unary      := '+' unary | '-' unary | NOT unary | primary
    primary    := literal | name | '(' or ')'

NOT binds tighter than a comparison, and text behind a complete expression is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from contrail.broker.state.sql92.comparisons import between, equal, not_between, ordered
from contrail.broker.state.sql92.expressions import (
    Expression,
    Type,
    boolean_cast,
    boolean_literal,
    conjunction,
    disjunction,
    float_literal,
    integer_literal,
    is_null,
    membership,
    negate,
    negation,
    property_named,
    string_literal,
    string_test,
)
from contrail.broker.state.sql92.lexer import Kind, Token, Tokens, utf16_text, utf16_units
from contrail.broker.state.sql92.lookahead import signed_operand_end
from contrail.broker.state.sql92.syntax_remark import (
    PARSE_EXCEPTION,
    PairAhead,
    SignedOperandAhead,
    syntax_error,
)
from contrail.errors import FilterInvalid

# Parentheses and prefixes around one operand. RocketMQ has no limit but its thread's stack.
NESTING_MAX = 100

_ORDERS = {
    Kind.GREATER: ">",
    Kind.GREATER_EQUAL: ">=",
    Kind.LESS: "<",
    Kind.LESS_EQUAL: "<=",
}
_STRING_TESTS: dict[Kind, Callable[[str, str], bool]] = {
    Kind.CONTAINS: str.__contains__,
    Kind.STARTSWITH: lambda text, search: text.startswith(search),
    Kind.ENDSWITH: lambda text, search: text.endswith(search),
}
_NEGATABLE = (Kind.CONTAINS, Kind.STARTSWITH, Kind.ENDSWITH, Kind.BETWEEN, Kind.IN)
_COMPARISONS = frozenset((Kind.NOT, *_NEGATABLE, *_ORDERS))
_OR, _AND, _COMMA = (frozenset((kind,)) for kind in (Kind.OR, Kind.AND, Kind.COMMA))
_EQUALITIES = frozenset((Kind.EQUAL, Kind.NOT_EQUAL, Kind.IS))
_PREFIXES = (Kind.PLUS, Kind.MINUS, Kind.NOT)
_LEAVES: dict[Kind, Callable[[str], Expression]] = {
    Kind.STRING: lambda image: string_literal(_string(image)),
    Kind.INTEGER: integer_literal,
    Kind.FLOAT: float_literal,
    Kind.TRUE: lambda _: boolean_literal(True),
    Kind.FALSE: lambda _: boolean_literal(False),
    Kind.NULL: lambda _: boolean_literal(None),
    Kind.NAME: property_named,
}
# A plus is not among them: it is found by looking ahead.
_OPERAND_STARTS = frozenset((*_LEAVES, Kind.OPEN, Kind.MINUS, Kind.NOT))


def parse_selector(text: str) -> tuple[Expression, tuple[str, ...]]:
    """The boolean expression that ``text`` starts with, and the properties that it names."""
    parser = _Parser(Tokens(text))
    expression = _boolean(parser.disjunction())
    return expression, tuple(parser.names)


def unread_rest(text: str) -> str:
    """The text behind the expression that ``text`` starts with: RocketMQ does not look at it.

    Raises:
        FilterInvalid: the text starts with no expression.
    """
    tokens = Tokens(text)
    parser = _Parser(tokens)
    parser.disjunction()
    token = tokens[parser.index]
    return "" if token.kind is Kind.END else utf16_text(utf16_units(text)[token.start :])


class _Parser:
    """Recursive descent over lazily read tokens.

    ``_wanted`` are the kinds that have not fitted the next token, for the remark.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.index = 0
        self._wanted: set[Kind] = set()
        self._nesting = 0
        self._looked_ahead_to = 0
        # In the order in which they occur, each once.
        self.names: dict[str, None] = {}

    def disjunction(self) -> Expression:
        """The rules ``or`` and ``and``; they are one method to keep the recursion shallow."""
        terms: list[Expression] = []
        while True:
            factors = [self._equality()]
            while self._next_in(_AND):
                self._take(Kind.AND)
                _join(factors, self._equality())
            _join(terms, conjunction(factors) if len(factors) > 1 else factors[0])
            if not self._next_in(_OR):
                return disjunction(terms) if len(terms) > 1 else terms[0]
            self._take(Kind.OR)

    def _equality(self) -> Expression:
        left = self._comparison()
        while self._next_in(_EQUALITIES):
            if self._kind() is Kind.IS:
                left = self._null_test(left)
                continue
            symbol = self._take(self._kind())
            left = equal(left, self._comparison())
            if symbol.kind is Kind.NOT_EQUAL:
                left = negation(left)
        return left

    def _null_test(self, operand: Expression) -> Expression:
        ahead = PairAhead(self.index, Kind.IS, Kind.NULL)
        self._take(Kind.IS)
        if self._kind() is Kind.NULL:
            self._take(Kind.NULL)
            return is_null(operand)
        self._take(Kind.NOT, ahead)
        self._take(Kind.NULL)
        return negation(is_null(operand))

    def _comparison(self) -> Expression:
        left = self._unary()
        while self._next_in(_COMPARISONS):
            if (symbol := _ORDERS.get(self._kind())) is None:
                left = self._worded_comparison(left)
            else:
                self._take(self._kind())
                left = ordered(left, symbol, self._unary())
        return left

    def _worded_comparison(self, left: Expression) -> Expression:
        negated = self._kind() is Kind.NOT
        if negated:
            self._take_not()
        word = self._take(self._kind()).kind
        if word is Kind.BETWEEN:
            low = self._unary()
            self._take(Kind.AND)
            return (not_between if negated else between)(left, low, self._unary())
        if word is Kind.IN:
            return membership(left, self._strings(), negated=negated)
        search = _string(self._take(Kind.STRING).image)
        return string_test(left, _STRING_TESTS[word], search, word=word.name, negated=negated)

    def _take_not(self) -> None:
        if self._tokens[self.index + 1].kind not in _NEGATABLE:
            aheads = [PairAhead(self.index, Kind.NOT, word) for word in _NEGATABLE]
            raise self._unfit((*_NEGATABLE, *_ORDERS), *aheads)
        self._take(Kind.NOT)

    def _strings(self) -> list[str]:
        self._take(Kind.OPEN)
        strings = [_string(self._take(Kind.STRING).image)]
        while self._next_in(_COMMA):
            self._take(Kind.COMMA)
            strings.append(_string(self._take(Kind.STRING).image))
        self._take(Kind.CLOSE)
        return strings

    def _unary(self) -> Expression:
        prefixes: list[Kind] = []
        while self._operand_starts() in _PREFIXES:
            prefixes.append(self._take(self._kind()).kind)
        operand = self._primary()
        for prefix in reversed(prefixes):
            if prefix is Kind.MINUS:
                operand = negate(operand)
            elif prefix is Kind.NOT:
                operand = negation(_boolean(operand))
        return operand

    def _operand_starts(self) -> Kind:
        """The kind of the next token, which must be able to start an operand."""
        kind = self._kind()
        if kind is Kind.PLUS and self.index >= self._looked_ahead_to:
            self._looked_ahead_to = signed_operand_end(self._tokens, self.index)
        if kind in _OPERAND_STARTS or (kind is Kind.PLUS and self.index < self._looked_ahead_to):
            return kind
        raise self._unfit(_OPERAND_STARTS, SignedOperandAhead(self.index))

    def _primary(self) -> Expression:
        if (leaf := _LEAVES.get(self._kind())) is not None:
            token = self._take(self._kind())
            if token.kind is Kind.NAME:
                self.names[token.image] = None
            return leaf(token.image)
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise FilterInvalid(f"more than {NESTING_MAX} parentheses are open; flatten them")
        self._take(Kind.OPEN)
        inner = self.disjunction()
        self._take(Kind.CLOSE)
        self._nesting -= 1
        return inner

    def _kind(self) -> Kind:
        return self._tokens[self.index].kind

    def _next_in(self, kinds: frozenset[Kind]) -> bool:
        if self._kind() in kinds:
            return True
        self._wanted |= kinds
        return False

    def _take(self, kind: Kind, *lookaheads: PairAhead) -> Token:
        token = self._tokens[self.index]
        if token.kind is not kind:
            raise self._unfit((kind,), *lookaheads)
        self.index += 1
        self._wanted.clear()
        return token

    def _unfit(
        self, kinds: Iterable[Kind], *lookaheads: PairAhead | SignedOperandAhead
    ) -> FilterInvalid:
        return syntax_error(self._tokens, self.index, self._wanted.union(kinds), lookaheads)


def _join(operands: list[Expression], right: Expression) -> None:
    """Add an operand of AND or OR. Only beside another it must be boolean, and the first too."""
    if len(operands) == 1:
        operands[0] = _boolean(operands[0])
    operands.append(_boolean(right) if operands else right)


def _boolean(operand: Expression) -> Expression:
    if operand.type is Type.BOOLEAN:
        return operand
    if operand.type is Type.PROPERTY:
        return boolean_cast(operand)
    raise FilterInvalid(
        f"{PARSE_EXCEPTION}Expression will not result in a boolean value: {operand}"
    )


def _string(image: str) -> str:
    return utf16_text(image[1:-1].replace("''", "'"))
