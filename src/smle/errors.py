"""Errors that smle raises on purpose. An outcome, such as a rule that does not hold, is a value and not an error.

SmleError
├── RuleError (ValueError)              a rules file or rule text that cannot be read
├── ContradictionError (ValueError)     rules that no model can satisfy together
├── DataError (ValueError)              tables that do not fit the specification
├── NotCertifiedError (RuntimeError)    a model for which no proof was found
├── CertificateError (ValueError)       a certificate that the exact checker rejects
├── ModelFormatError (ValueError)       a model folder that cannot be read
├── ConversionError (ValueError)        an estimator that cannot be stored as ONNX
├── TrainingError (RuntimeError)        training that cannot continue (for example a NaN loss)
└── MissingDependencyError (ImportError)  an optional extra that is not installed

AccuracyWarning (UserWarning): a model that may obey its rules but predict poorly
"""

__all__ = [
    "AccuracyWarning",
    "CertificateError",
    "ContradictionError",
    "ConversionError",
    "DataError",
    "MissingDependencyError",
    "ModelFormatError",
    "NotCertifiedError",
    "RuleError",
    "SmleError",
    "TrainingError",
]


class SmleError(Exception):
    """Base of all errors that smle raises on purpose."""


class RuleError(SmleError, ValueError):
    """A rules file or rule text cannot be read; the message names the offending part."""


class ContradictionError(SmleError, ValueError):
    """No model can satisfy the rules together; the message names a smallest set of them that conflicts."""


class DataError(SmleError, ValueError):
    """A table does not fit the specification; the message names columns and counts."""


class NotCertifiedError(SmleError, RuntimeError):
    """No proof was found for a model; the message says for which rule and by how much.

    `refuted`: whether the model breaks a rule at some input; otherwise nothing is decided.
    """

    def __init__(self, message: str = "", *, refuted: bool = False) -> None:
        super().__init__(message)
        self.refuted = refuted


class CertificateError(SmleError, ValueError):
    """The exact checker rejects a certificate; the message says why."""


class ModelFormatError(SmleError, ValueError):
    """A model folder cannot be read."""


class ConversionError(SmleError, ValueError):
    """An estimator cannot be stored as ONNX; the message says why and what to do."""


class TrainingError(SmleError, RuntimeError):
    """Training cannot continue; the message says at which step and why."""


class MissingDependencyError(SmleError, ImportError):
    """An optional extra is needed; the message names the command that installs it."""


class AccuracyWarning(UserWarning):
    """A model may obey its rules but predict poorly; the message says where, why and what to do."""
