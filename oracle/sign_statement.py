"""Signs a statement of w4pack with sigstore's model_signing, and verifies it unchanged.

usage: sign_statement.py STATEMENT CHECKPOINT WORK

The statement is signed as what it is, an in-toto statement in a DSSE envelope; the verifier must give
back the same JSON. Then the checkpoint and the statement's file are signed as models, the way
model_signing does by itself, and a changed byte must be noticed.
"""

import json
import pathlib
import shutil
import sys

import model_signing
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format
from in_toto_attestation.v1 import statement as intoto
from in_toto_attestation.v1 import statement_pb2
from model_signing._signing import sign_ec_key, sign_sigstore_pb


def keys(folder):
    """A fresh key pair; paths of its private and its public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


class Payload:
    """What model_signing's signers take: something with an in-toto statement."""

    def __init__(self, text):
        parsed = json_format.Parse(text, statement_pb2.Statement())
        self.statement = intoto.Statement.copy_from_pb(parsed)
        self.statement.validate()


def sign_as_statement(text, work, private, public):
    signature = work / "statement.sigstore"
    sign_ec_key.Signer(private).sign(Payload(text)).write(signature)
    read = sign_sigstore_pb.Signature.read(signature)
    kind, payload = sign_ec_key.Verifier(public)._verify_bundle(read.bundle)
    assert kind == "application/vnd.in-toto+json", kind
    assert json.loads(payload) == json.loads(text), "the signed statement is another one"


def sign_as_model(path, work, private, public):
    signature = work / "model.sig"
    model_signing.signing.Config().use_elliptic_key_signer(private_key=private).sign(path, signature)
    verify = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public).verify
    verify(path, signature)
    copy = work / "changed"
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    changed = copy / "config.json" if path.is_dir() else copy
    changed.write_bytes(changed.read_bytes() + b" ")
    try:
        verify(copy, signature)
    except ValueError:
        shutil.rmtree(copy) if path.is_dir() else copy.unlink()
        return
    raise AssertionError(f"a changed {path.name} was verified")


def main():
    statement, checkpoint, work = map(pathlib.Path, sys.argv[1:])
    private, public = keys(work)
    text = statement.read_text()
    sign_as_statement(text, work, private, public)
    sign_as_model(checkpoint, work, private, public)
    sign_as_model(statement, work, private, public)
    assert statement.read_text() == text
    print("signed and verified")


main()
