"""Files of a model repository on the hub: the local cache first, then the network.

Every way in which the hub can fail has its own message within seconds. The hub client retries a
failed look-up for minutes; each file is therefore asked for once, with a short time limit, before
the client is allowed to fetch it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankscope.exceptions import (
    AccessRefused,
    ModelError,
    ModelNotCached,
    NotAModelFolder,
    RankscopeError,
)
from rankscope.models.architecture import CONFIG
from rankscope.models.weights import CANDIDATES, SINGLE_FILES, locate, shard_names

# Any one of these carries a vocabulary; the others only refine it.
VOCABULARIES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
TOKENIZER_EXTRAS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
# Seconds to wait for one answer: the whole refusal must come within five.
TIMEOUT = 4.0

Need = Literal["none", "probe", "download"]


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder holds the vocabulary of a tokenizer."""
    return any((folder / name).is_file() for name in VOCABULARIES)


@dataclass(frozen=True)
class Hub:
    """One hub, one cache and the rules for using them.

    Parameters
    ----------
    endpoint : str
        Address of the hub.
    cache_dir : pathlib.Path
        The hub client's cache, shared with every other program that uses it.
    offline : bool
        If true, no network call is made at all.
    timeout : float
        Seconds to wait for one answer.
    """

    endpoint: str
    cache_dir: Path
    offline: bool
    timeout: float = TIMEOUT

    @classmethod
    def from_environment(cls) -> Hub:
        """Hub and cache as HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE … set them.

        TRANSFORMERS_OFFLINE counts as well. The client reads its environment once, when it is
        imported; the two offline switches are also honoured when they are set later.
        """
        from huggingface_hub import constants

        switches = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        late = any(
            os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in switches
        )
        timeout = TIMEOUT
        if constants.HF_HUB_ETAG_TIMEOUT != constants.DEFAULT_ETAG_TIMEOUT:
            timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
        return cls(
            constants.ENDPOINT,
            Path(constants.HF_HUB_CACHE),
            bool(constants.HF_HUB_OFFLINE) or late,
            timeout,
        )

    def cached(self, repo: str, revision: str | None = None) -> Path | None:
        """Snapshot folder of a repository in the cache, or None; no network.

        Parameters
        ----------
        repo : str
            ``OWNER/NAME``.
        revision : str, optional
            Branch, tag or commit; ``main`` unless given.
        """
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(
                repo, CONFIG, cache_dir=self.cache_dir, revision=revision or "main"
            )
        except HFValidationError as error:
            raise NotAModelFolder(
                f"{repo} is neither a folder nor a hub id: {error}",
                "check the path; hub ids have the form OWNER/NAME",
            ) from error
        return Path(found).parent if isinstance(found, str) else None

    def snapshot(self, repo: str, revision: str | None = None, weights: Need = "download") -> Path:
        """Folder with the files of a model, taken from the cache or fetched into it.

        What the cache holds is used as it is, without asking for news; ``revision`` pins a state.

        Parameters
        ----------
        repo : str
            ``OWNER/NAME``.
        revision : str, optional
            Branch, tag or commit; ``main`` unless given.
        weights : {"download", "probe", "none"}
            Whether the weights are fetched, only shown to be within reach, or not needed.

        Returns
        -------
        pathlib.Path
            Snapshot folder; its name is the commit hash.

        Raises
        ------
        ModelNotCached
            Not in the cache, and the network is off, out of reach or does not answer in time.
        AccessRefused
            Gated, private or disabled.
        NotAModelFolder
            No such repository or revision, or one without a model.
        """
        folder = self.cached(repo, revision)
        lacking = self._lacking(folder, weights)
        if not lacking:
            assert folder is not None
            return folder
        if self.offline:
            if folder is not None and lacking == ["tokenizer files"]:
                # A model can be used with another tokenizer; without one its loader complains.
                return folder
            part = "" if folder is None else f" in full (lacking: {', '.join(lacking)})"
            raise ModelNotCached(
                f"{repo} is not cached{part} in {self.cache_dir}, and the network is switched off "
                "(HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)",
                "run once with the network on, or give the path of a folder that holds the model",
            )
        try:
            return self._fetch(repo, revision, folder, weights)
        except RankscopeError:
            raise
        except Exception as error:
            raise self._refusal(error, repo, revision) from error

    @staticmethod
    def _lacking(folder: Path | None, weights: Need) -> list[str]:
        if folder is None:
            return ["everything"]
        lacking = []
        if not has_vocabulary(folder):
            lacking.append("tokenizer files")
        if weights != "none":
            found = locate(folder)
            if found is None:
                lacking.append("weights")
            else:
                lacking.extend(found.missing)
        return lacking

    def _fetch(self, repo: str, revision: str | None, folder: Path | None, weights: Need) -> Path:
        if folder is None:
            commit = self._head(repo, CONFIG, revision or "main")
            if commit is None:
                raise NotAModelFolder(
                    f"the repository {repo} at {self.endpoint} has no {CONFIG}",
                    "give a repository of a transformers model",
                )
            # Fetched under the name that was asked for, so that the cache learns where it points.
            folder = self._get(repo, CONFIG, revision or "main").parent
        commit = folder.name
        for name in (*VOCABULARIES, *TOKENIZER_EXTRAS):
            # A whole tokenizer.json makes the slow formats' files superfluous.
            if name in VOCABULARIES[1:] and (folder / VOCABULARIES[0]).is_file():
                continue
            if not (folder / name).is_file() and self._head(repo, name, commit):
                self._get(repo, name, commit)
        if weights != "none":
            self._fetch_weights(repo, commit, folder, weights)
        return folder

    def _fetch_weights(self, repo: str, commit: str, folder: Path, weights: Need) -> None:
        for name in CANDIDATES:
            here = (folder / name).is_file()
            if not here and not self._head(repo, name, commit):
                continue
            if weights == "download":
                entry = self._get(repo, name, commit)
                if name not in SINGLE_FILES:
                    for shard in shard_names(entry):
                        self._get(repo, shard, commit)
            return
        raise NotAModelFolder(
            f"the repository {repo} at {self.endpoint} has no weights that can be read "
            f"(looked for {', '.join(CANDIDATES)})",
            "give a repository with safetensors or torch weights",
        )

    def _head(self, repo: str, name: str, revision: str) -> str | None:
        """Commit of a file on the hub, or None where the repository lacks it; asked only once."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        url = hf_hub_url(repo, name, revision=revision, endpoint=self.endpoint)
        try:
            found = get_hf_file_metadata(url, timeout=self.timeout, endpoint=self.endpoint)
        except EntryNotFoundError:
            return None
        if not found.commit_hash:
            raise ModelError(
                f"{self.endpoint} answers, but not like a model hub: no commit in its reply",
                "check HF_ENDPOINT, the proxy and the firewall",
            )
        return str(found.commit_hash)

    def _get(self, repo: str, name: str, revision: str) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(
            hf_hub_download(
                repo,
                name,
                revision=revision,
                cache_dir=self.cache_dir,
                endpoint=self.endpoint,
                etag_timeout=self.timeout,
            )
        )

    def _refusal(self, error: Exception, repo: str, revision: str | None) -> ModelError:
        """The error in our own words, with its cause and remedy."""
        from huggingface_hub import errors

        page = f"{self.endpoint}/{repo}"
        if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(
            error.__cause__, Exception
        ):
            return self._refusal(error.__cause__, repo, revision)
        if isinstance(error, errors.GatedRepoError):
            return AccessRefused(
                f"{repo} is gated: the hub refuses access without its owner's permission",
                f"ask for access at {page}, then run `hf auth login` or set HF_TOKEN",
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return NotAModelFolder(
                f"{repo} has no revision {revision or 'main'!r}", f"look up its revisions at {page}"
            )
        if isinstance(error, errors.DisabledRepoError):
            return AccessRefused(f"{repo} was disabled on the hub", "use another model")
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return AccessRefused(
                f"the hub refuses access to {repo} (HTTP {status}): it is private or gated, "
                "or no such repository exists, or the token is not valid",
                f"check the name at {page}, then run `hf auth login` or set HF_TOKEN",
            )
        if status == 404:
            return NotAModelFolder(
                f"there is no repository {repo} at {self.endpoint}, nor a folder of that name here",
                "check the spelling; hub ids have the form OWNER/NAME",
            )
        offline_copy = "or give the path of a folder that holds the model"
        if status is not None:
            return ModelNotCached(
                f"{repo} is not cached, and {self.endpoint} answers with HTTP {status}",
                f"try again later, {offline_copy}",
            )
        # The hub client's HTTP library differs between its releases; its own error names both.
        transport = errors.HfHubHTTPError.__bases__[0]
        if not isinstance(error, (transport, ConnectionError)):
            return ModelError(
                f"{repo} could not be fetched into {self.cache_dir}: {error!r}",
                "see that the folder can be written and has room, or set HF_HOME to another",
            )
        if "Timeout" in type(error).__name__:
            return ModelNotCached(
                f"{repo} is not cached, and {self.endpoint} did not answer "
                f"within {self.timeout:g} seconds",
                f"try again, set HF_HUB_ETAG_TIMEOUT to more seconds, {offline_copy}",
            )
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return ModelNotCached(
            f"{repo} is not cached, and there is no connection to {self.endpoint}: {reason}",
            f"check the network, the proxy and HF_ENDPOINT, {offline_copy}",
        )
