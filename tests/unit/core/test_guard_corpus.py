"""Realistic payloads pass the guards: webhooks, manifests, lock files, addresses."""

import base64
import random
from typing import Any

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.guard import DEFAULT_GUARD, PERSONAL_GUARD, Guard, ScannedEvent

COUNT = 40
_WORDS = [
    "fix",
    "add",
    "task",
    "risk",
    "key",
    "token",
    "secret",
    "password",
    "pass",
    "api",
    "bearer",
    "basic",
    "order",
    "payment",
    "sk",
    "live",
    "test",
    "model",
    "final",
    "report",
    "release",
    "notes",
    "index",
    "disk",
    "ask",
    "flask",
    "mask",
    "kiosk",
    "public",
    "private",
    "begin",
]


class Maker:
    """Makes payloads, the same in each run."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)

    def hex(self, count: int) -> str:
        """Return a hash or an id."""
        return "".join(self.chance.choices("0123456789abcdef", k=count))

    def number(self) -> int:
        """Return an id of a row."""
        return self.chance.randrange(1, 10**9)

    def uuid(self) -> str:
        """Return a UUID."""
        return "-".join(self.hex(count) for count in (8, 4, 4, 4, 12))

    def slug(self, joint: str = "-") -> str:
        """Return a name made of words."""
        return joint.join(self.chance.choices(_WORDS, k=self.chance.randrange(2, 6)))

    def image(self) -> str:
        """Return the data of an image."""
        return base64.b64encode(self.chance.randbytes(3000)).decode()

    def repository(self) -> dict[str, Any]:
        """Return a repository as GitHub describes it."""
        name = f"{self.slug()}/{self.slug()}"
        return {
            "id": self.number(),
            "node_id": base64.b64encode(f"010:Repository{self.number()}".encode()).decode(),
            "full_name": name,
            "private": True,
            "ssh_url": f"git@github.com:{name}.git",
            "git_url": f"git://github.com/{name}.git",
            "clone_url": f"https://github.com/{name}.git",
            "keys_url": f"https://api.github.com/repos/{name}/keys{{/key_id}}",
            "hooks_url": f"https://api.github.com/repos/{name}/hooks",
            "issues_url": f"https://api.github.com/repos/{name}/issues{{/number}}",
            "security_and_analysis": {"secret_scanning": {"status": "disabled"}},
        }

    def push(self) -> dict[str, Any]:
        """Return a push."""
        return {
            "ref": f"refs/heads/{self.slug()}",
            "before": self.hex(40),
            "after": self.hex(40),
            "repository": self.repository(),
            "commits": [
                {"id": self.hex(40), "message": f"{self.slug(' ')}\n\n* {self.slug(' ')} (#1)"}
                for _ in range(3)
            ],
        }

    def pull_request(self) -> dict[str, Any]:
        """Return a pull request."""
        return {
            "action": "opened",
            "pull_request": {
                "title": f"Task-sk-learn-{self.slug()}",
                "body": f"## {self.slug(' ')}\r\n- [x] `{self.slug('_')}`\r\n",
                "merge_commit_sha": self.hex(40),
                "head": {"ref": self.slug(), "sha": self.hex(40), "repo": self.repository()},
            },
        }

    def release(self) -> dict[str, Any]:
        """Return a release."""
        name = f"{self.slug()}-v1.{self.number()}.0-linux-x86_64.tar.gz"
        digest = f"sha256:{self.hex(64)}"
        return {
            "release": {"tag_name": "v1.3.0-beta.1", "assets": [{"name": name, "digest": digest}]}
        }

    def charge(self) -> dict[str, Any]:
        """Return a payment event in test mode."""
        made = "".join(self.chance.choices("ABCDEFGHabcdefgh0123456789", k=24))
        return {
            "id": f"evt_{made}",
            "livemode": False,
            "data": {
                "object": {
                    "id": f"ch_{made}",
                    "payment_intent": f"pi_{made}",
                    "customer": f"cus_{made[:14]}",
                    "receipt_url": f"https://pay.stripe.com/receipts/payment/{made}",
                    "client_secret": None,
                }
            },
            "request": {"id": f"req_{made[:14]}", "idempotency_key": self.uuid()},
        }

    def pod(self) -> dict[str, Any]:
        """Return a pod that refers to secrets."""
        key = {"secretKeyRef": {"name": "db-creds", "key": "password"}}
        return {
            "kind": "Pod",
            "metadata": {"name": f"{self.slug()}-{self.hex(10)}-x2k9q", "uid": self.uuid()},
            "spec": {
                "containers": [
                    {
                        "image": f"registry.example/{self.slug()}@sha256:{self.hex(64)}",
                        "env": [{"name": "DB_PASSWORD", "valueFrom": key}],
                        "args": ["--token-ttl=3600", "--secret-name", "db-creds"],
                    }
                ],
                "volumes": [{"name": "certs", "secret": {"secretName": "tls", "defaultMode": 420}}],
                "imagePullSecrets": [{"name": "pull"}],
                "serviceAccountName": "default",
            },
        }

    def lock(self) -> dict[str, Any]:
        """Return entries of a lock file."""
        digest = base64.b64encode(self.chance.randbytes(64)).decode()
        return {
            f"node_modules/{self.slug()}": {
                "version": "1.3.0-beta.2",
                "resolved": "https://registry.example/left-pad/-/left-pad-1.3.0.tgz",
                "integrity": f"sha512-{digest}",
                "requires": ["left-pad@1.3.0.beta", "@scope/pkg@2.0.0", "flask@v1.2.rc"],
            }
        }

    def addresses(self) -> dict[str, Any]:
        """Return addresses of pages and machines."""
        return {
            "next": f"https://api.example.com/v1/items?limit=50&token={self.number()}",
            "page": f"https://api.example.com/v1/items?page_token={self.hex(16)}&key=name",
            "search": "https://example.com/?q=password+reset&sort=token",
            "remote": "ssh://git@host.example.com/srv/repo.git",
            "copy": "user@host.internal:/srv/data",
            "docs": "https://example.com/docs/basic auth/bearer tokens#password",
        }

    def account(self) -> dict[str, Any]:
        """Return events of an account."""
        return {
            "reset_password": "requested",
            "password_changed_at": "2025-01-01T00:00:00Z",
            "password_strength": 4,
            "token_type": "bearer",
            "tokens": {"prompt": 1200, "completion": 340},
            "secret_version_id": "3",
            "key": "color",
            "avatar": f"data:image/png;base64,{self.image()}",
            "hint": "eyJust.a.word and eyelash.eyebrow.eye",
            "etag": f'W/"{self.hex(32)}"',
            "trace": f"00-{self.hex(32)}-{self.hex(16)}-01",
            "ulid": "01HV6Z8K3M5N7P9Q1R3S5T7V9X",
        }


KINDS = [
    *("push", "pull_request", "release", "charge", "pod", "lock", "addresses", "account"),
]


@pytest.mark.parametrize("guard", [DEFAULT_GUARD, PERSONAL_GUARD], ids=lambda guard: guard.name)
@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_payloads_pass(kind: str, guard: Guard) -> None:
    """K1: payloads of other systems with hashes, ids, images and words about secrets pass."""
    maker = Maker(kind)
    for _ in range(COUNT):
        payload = getattr(maker, kind)()
        assert guard.scan(ScannedEvent(payload, canonical_text(payload))) is None
