"""The format of numbers in tables, figures and pages. An epsilon is never rounded down."""

from decimal import ROUND_CEILING, Decimal

NOTHING = "–"
NO_PRIVACY = "none (no privacy)"
NO_BOUND = "no finite bound"


def epsilon_text(epsilon: float | None, *, private: bool = True) -> str:
    """Two decimals (two significant digits below 0.01), rounded up; words where there is no number."""
    if not private:
        return NO_PRIVACY
    if epsilon is None:
        return NO_BOUND
    if abs(epsilon) >= 1e9:  # says nothing any more, and has too many digits to write out
        return "more than 1e9" if epsilon > 0 else NO_BOUND
    exact = Decimal(str(epsilon))
    if epsilon >= 0.01 or epsilon <= 0:
        return str(exact.quantize(Decimal("0.01"), rounding=ROUND_CEILING))
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_CEILING):f}"


def delta_text(delta: float | None) -> str:
    """A power of ten where it is one: 1e-4, 2.5e-5."""
    if delta is None:
        return NOTHING
    mantissa, exponent = f"{delta:.6e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal, without its sign."""
    return NOTHING if share is None else f"{100 * share:.1f}"


def seconds_text(seconds: float | None) -> str:
    """Whole seconds from 100 on, tenths below."""
    if seconds is None:
        return NOTHING
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}"


def value_text(value: object) -> str:
    """A setting as a reader would write it."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(entry) for entry in value) or NOTHING
    if isinstance(value, dict):
        return "; ".join(f"{words(str(key))}: {value_text(entry)}" for key, entry in value.items()) or NOTHING
    return str(value)


def words(name: str) -> str:
    """A field's name as words: noise_multiplier -> noise multiplier."""
    return name.replace("_", " ").strip()
