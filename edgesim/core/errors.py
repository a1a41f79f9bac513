"""Errors a user can cause or must hear of. Each is rebuildable from `args`, as SimPy re-raises by type and args."""


class EdgesimError(Exception):
    """Base of all errors that are reported as one line and exit code 2."""


class ConfigError(EdgesimError):
    """A scenario, its files or its options cannot be used; the message names the key or file."""


class DataError(EdgesimError):
    """A data set or a checkpoint is missing, damaged or does not fit; the message names the file and what to do."""


class ContractError(EdgesimError):
    """A method, protocol or backend broke a promise of the seams in `edgesim.core`."""


class LedgerError(EdgesimError):
    """The energy ledger does not close: joules of jobs and idle time differ from joules of devices."""


class FolderBusy(ConfigError):
    """Another run is at work in a run folder; the message names the folder and the process."""
