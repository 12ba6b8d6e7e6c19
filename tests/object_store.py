"""An object store on this machine, for tests: moto's server behind s3fs."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "corpus"


@contextmanager
def s3() -> Iterator[str]:
    """Give the name of a bucket on a server of S3's protocol; skip where one cannot be started."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("NO_PROXY", host)
        use_keys(patch, "test", "test")
        client("s3").create_bucket(Bucket=BUCKET)
        try:
            yield f"s3://{BUCKET}"
        finally:
            server.stop()


@contextmanager
def without_rights(*allowed: str) -> Iterator[None]:
    """Let the environment have keys that may do these things alone: `s3:GetObject`, say."""
    user, service = f"may-{len(allowed)}", client("iam")
    service.create_user(UserName=user)
    if allowed:
        policy = {"Effect": "Allow", "Action": allowed, "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        service.put_user_policy(UserName=user, PolicyName="few", PolicyDocument=document)
    keys = service.create_access_key(UserName=user)["AccessKey"]
    with pytest.MonkeyPatch.context() as patch:
        use_keys(patch, keys["AccessKeyId"], keys["SecretAccessKey"])
        ask_for_rights("0")
        try:
            yield
        finally:
            ask_for_rights("inf")
    use_keys(patch, "test", "test")


def ask_for_rights(after: str) -> None:
    """Have the server look at keys after so many requests."""
    url = os.environ["AWS_ENDPOINT_URL"] + "/moto-api/reset-auth"
    request = urllib.request.Request(url, after.encode(), {"Content-Type": "text/plain"})
    urllib.request.urlopen(request).close()


def use_keys(patch: pytest.MonkeyPatch, name: str, secret: str) -> None:
    """Let the environment have these keys, which no connection made before has."""
    from s3fs import S3FileSystem

    patch.setenv("AWS_ACCESS_KEY_ID", name)
    patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    S3FileSystem.clear_instance_cache()


def client(service: str) -> Any:
    """Return a client of the server that the environment names."""
    import boto3

    return boto3.client(service)
