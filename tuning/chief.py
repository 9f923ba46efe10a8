"""A search on several machines: the chief hands out trials, and workers ask it for them.

The protocol is keras-tuner's. Added to it: a worker that waits for a chief says so, and gives up
after a while; a chief that cannot go on says why, to its workers too, and ends; a worker whose
folder is not the chief's is refused before it trains.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import socket
import threading
import time
import uuid

import grpc

# There is no public name for what a chief and a worker of keras-tuner say to each other.
from keras_tuner.src import protos
from keras_tuner.src.distribute import oracle_chief, oracle_client

from examples.training import records
from examples.training.errors import UsageError
from tuning.oracles import WorkerRefused
from tuning.project import SearchError

VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")
# There while a search has a chief that has not come to its end; the same content reaches the
# workers over the network.
TOKEN = "chief.txt"
_TOKEN_HEADER = "search-folder"
_CALL_SECONDS = 10.0
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class ChiefEnded(Exception):
    """The chief has come to the end of the search."""


def role():
    """What keras-tuner's environment variables make of this process.

    Returns:
        `"chief"`, `"worker"` or, without them, `"alone"`.

    Raises:
        UsageError: If some of them are set and others are not, or the port is none.
    """
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if len(missing) == len(VARIABLES):
        return "alone"
    if missing:
        raise UsageError(
            f"{', '.join(VARIABLES)} must be set together. Not set: {', '.join(missing)}"
        )
    tuner_id, _, port = (os.environ[name] for name in VARIABLES)
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535):
        raise UsageError(f"{VARIABLES[2]} must be a number from 1 to 65535. Received: {port}")
    return "chief" if "chief" in tuner_id else "worker"


def tuner_id():
    """The name that this process has among those of a search."""
    return os.environ.get(VARIABLES[0]) or "tuner0"


def address():
    """Where the chief is, as `host:port`."""
    return ":".join(os.environ[name] for name in VARIABLES[1:])


def check_address():
    """Raises UsageError if the chief cannot listen at the address that it is given."""
    host, port = (os.environ[name] for name in VARIABLES[1:])
    try:
        socket.create_server((host, int(port))).close()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"The chief cannot listen at {address()}: {error}") from error


def serve(oracle, folder):
    """Hands out trials until all have ended and every worker knows.

    Args:
        oracle: One of `tuning.oracles.ORACLES`, made and placed.
        folder: `pathlib.Path` of the search.

    Raises:
        SearchError: If the oracle cannot go on, such as for a full disk.
    """
    token = uuid.uuid4().hex
    with records.replacing(folder / TOKEN) as temporary:
        temporary.write_text(token)
    one_at_a_time = _OneAtATime(token)
    servicer = oracle_chief.OracleServicer(oracle)
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(max_workers=1), interceptors=[one_at_a_time]
    )
    protos.get_service_grpc().add_OracleServicer_to_server(servicer, server)
    server.add_insecure_port(address())
    server.start()
    print(f"Waiting for workers at {address()}", flush=True)
    try:
        _until_all_is_done(oracle, servicer, one_at_a_time)
        (folder / TOKEN).unlink(missing_ok=True)
    finally:
        # Time for the last answers to arrive.
        server.stop(grace=2).wait()


def _until_all_is_done(oracle, servicer, one_at_a_time):
    had_workers = False
    while True:
        with one_at_a_time.lock:
            if one_at_a_time.failure is not None:
                raise SearchError(f"Cannot go on: {one_at_a_time.failure}")
            oracle.release_silent_workers()
            workers = bool(oracle.ongoing_trials or oracle.tuner_ids)
            done = servicer.stop_triggered or oracle.all_have_ended()
        if done and not workers:
            return
        if had_workers and not workers:
            print("No worker is left; waiting for one", flush=True)
        had_workers = workers
        time.sleep(0.5)


class _OneAtATime(grpc.ServerInterceptor):
    """Lets one call after the other at the oracle, and none after one that went wrong.

    keras-tuner's own lock stays closed when the oracle raises, and its chief would live on, silent.

    Args:
        token: String that every answer carries.
    """

    def __init__(self, token):
        self.lock = threading.Lock()
        self.failure = None
        self._token = token

    def intercept_service(self, continuation, details):
        handler = continuation(details)

        def call(request, context):
            context.set_trailing_metadata(((_TOKEN_HEADER, self._token),))
            with self.lock:
                if self.failure is None:
                    try:
                        return handler.unary_unary(request, context)
                    except WorkerRefused as error:
                        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
                    except Exception as error:
                        self.failure = error
                reason = f"The chief has stopped: {self.failure}"
            context.abort(grpc.StatusCode.ABORTED, reason)

        return grpc.unary_unary_rpc_method_handler(
            call, handler.request_deserializer, handler.response_serializer
        )


class ChiefClient(oracle_client.OracleClient):
    """The chief's oracle as a worker sees it.

    Args:
        oracle: The worker's own oracle, which knows objective and number of trials.
        folder: `pathlib.Path` of the search.
        patience: Seconds to wait for a chief that does not answer.
    """

    def __init__(self, oracle, folder, patience):
        super().__init__(oracle)
        # A chief that was started again is found at once.
        options = [("grpc.max_reconnect_backoff_ms", 1000)]
        channel = grpc.insecure_channel(address(), options=options)
        self._stub = protos.get_service_grpc().OracleStub(channel)
        self._calls = _PatientCalls(self._stub, folder, patience)
        self.stub = self._calls

    def connect(self):
        """Waits for the chief, and makes sure that it has the same folder.

        Raises:
            SearchError: If no chief answers, or it has another folder.
        """
        print(
            f"Asking the chief at {address()} for trials; giving up if it does not answer for "
            f"{self._calls.patience:.0f} s",
            flush=True,
        )
        self.get_space()
        path = self._calls.folder / TOKEN
        try:
            here = path.read_text()
        except OSError:
            here = None
        if here != self._calls.token:
            raise SearchError(
                f"{self._calls.folder} is not the folder of the chief at {address()}: "
                "chief and workers need one --directory that they share."
            )

    @contextlib.contextmanager
    def heartbeat(self, trial_id, seconds):
        """Shows the chief every so many seconds that this worker is alive."""
        ended = threading.Event()
        request = protos.get_service().GetTrialRequest(trial_id=trial_id)

        def beat():
            while not ended.wait(seconds):
                with contextlib.suppress(grpc.RpcError):
                    self._stub.GetTrial(request, timeout=_CALL_SECONDS)

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            ended.set()


class _PatientCalls:
    """The calls of a stub, which wait for a chief that is away for a while.

    A call can reach the chief twice; every one of them then does the same again.
    """

    def __init__(self, stub, folder, patience):
        self.folder = pathlib.Path(folder)
        self.patience = patience
        self.token = None
        self._stub = stub

    def __getattr__(self, name):
        method = getattr(self._stub, name)
        return lambda request, **others: self._call(method, request)

    def _call(self, method, request):
        began = time.monotonic()
        said = False
        while True:
            left = self.patience - (time.monotonic() - began)
            try:
                response, call = method.with_call(
                    request, wait_for_ready=True, timeout=max(0.1, min(_CALL_SECONDS, left))
                )
                break
            except grpc.RpcError as error:
                if error.code() not in _NO_ANSWER:
                    raise SearchError(error.details()) from error
                self._give_up_or_wait(time.monotonic() - began, said, error)
                said = True
        if said:
            print(f"The chief at {address()} answers again", flush=True)
        self.token = dict(call.trailing_metadata()).get(_TOKEN_HEADER)
        return response

    def _give_up_or_wait(self, silent, said, error):
        if self.token is not None and not (self.folder / TOKEN).exists():
            raise ChiefEnded from error
        if silent >= self.patience:
            raise SearchError(
                f"The chief at {address()} has not answered for {self.patience:.0f} s. What was "
                "trained is kept; once the chief is back, the same command goes on."
            ) from error
        if not said:
            print(f"The chief at {address()} does not answer; still trying", flush=True)
        time.sleep(min(1.0, max(0.0, self.patience - silent)))
