"""Hostile code that an app or a training loop of a user may hold, composed from a grammar.

In the text of an act `<<a|b>>` is either a or b, drawn anew for every case. The text runs as the body of a function of
`scene`, which has `arrays` (list of NumPy arrays to answer with), `metrics` (a dict to answer with), `answer` (replaces
the whole answer if set), and, in Flower apps, `message` and `context`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from textwrap import dedent, indent
from typing import Literal, NamedTuple

# What an act does to a run: "silent": none of its numbers change. "answers": some call fails, or answers with nonsense.
# "endless": a call ends by its timeout. "kills": the process of the call ends.
# "spoils": its process is unfit for more calls.
Effect = Literal["silent", "answers", "endless", "kills", "spoils"]


class Act(NamedTuple):
    """One hostile thing to do. `flower`: only an app of Flower can do it."""

    kind: str  # row of the table of verdicts
    effect: Effect
    text: str
    flower: bool = False


def _acts(kind: str, effect: Effect, *texts: str, flower: bool = False) -> list[Act]:
    return [Act(kind, effect, dedent(text).strip(), flower) for text in texts]


_ERRORS = (
    "ValueError|KeyError|OSError|RuntimeError|AssertionError|StopIteration|StopAsyncIteration|GeneratorExit|EOFError|"
    "MemoryError|RecursionError|NotImplementedError|BrokenPipeError|TimeoutError|InterruptedError|ImportError"
)
_WORDS = "|broken|two\\nlines|\\x1b[31mred|\\udcff|%s {0}|'a' * 100_000"

HARMLESS = _acts(
    "nothing",
    "silent",
    "pass",
    "[n * n for n in range(<<10|1000>>)]",
    "print('epoch <<1|2>> of 3')",
    "str(scene)",
    "import math; math.sqrt(<<2|3>>)",
)

ACTS: list[Act] = [
    *_acts(
        "raises an Exception",
        "answers",
        f"raise <<{_ERRORS}>>(<<''|'broken'|'two\\nlines'|'\\x1b[31mred'|'\\udcff'|'x' * 100_000|1, 2>>)",
        "raise <<ValueError|OSError>>('outer') from KeyError('inner')",
        "1 / 0",
        "[][0]",
        "scene.there_is_no_such_name",
        "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
        "assert False",
        "raise StopIteration(<<|1|scene>>)",
        "import there_is_no_such_module",
        "raise UnicodeDecodeError('utf-8', b'\\xff', 0, 1, 'broken')",
        "raise UnicodeEncodeError('utf-8', '\\udcff', 0, 1, 'broken')",
    ),
    *_acts(
        "raises a BaseException",
        "answers",
        "raise SystemExit(<<|0|1|3|'message'|None>>)",
        "raise KeyboardInterrupt",
        "import sys; sys.exit(<<0|1|'gone'>>)",
        "raise BaseException(<<|'base'>>)",
        "raise GeneratorExit",
        "import asyncio; raise asyncio.CancelledError",
        "exit(<<|1>>)",
        "class Own(BaseException): pass\nraise Own('own')",
    ),
    *_acts(
        "raises an exception that cannot be shown or sent",
        "answers",
        """
        class Odd(<<Exception|ValueError|BaseException>>):
            def __<<str|repr>>__(self):
                raise <<ValueError('no text')|SystemExit(3)|KeyboardInterrupt>>
        raise Odd('odd')
        """,
        """
        class Odd(Exception):
            def __str__(self):
                return <<None|3|b'bytes'>>
        raise Odd('odd')
        """,
        """
        class Odd(Exception):
            def __reduce__(self):
                <<raise ValueError('no pickle')|return 3|return (exit, (3,))>>
        raise Odd('odd')
        """,
        """
        class Odd(Exception):
            def __init__(self, one, two):
                super().__init__('odd', lambda: one)
        raise Odd(1, 2)
        """,
        """
        class Meta(type):
            @property
            def __name__(cls):
                raise ValueError('no name')
        class Odd(Exception, metaclass=Meta):
            pass
        raise Odd('odd')
        """,
        """
        error = ValueError('its own cause')
        other = KeyError('other')
        error.__cause__, other.__context__ = other, error
        raise error
        """,
        """
        error = ValueError('notes')
        error.__notes__ = <<None|3|['n' * 10_000] * 100>>
        raise error
        """,
    ),
    *_acts(
        "recursion without end",
        "answers",
        "def down(n):\n    return down(n + 1)\ndown(0)",
        "import sys; sys.setrecursionlimit(<<200|2000|5000>>)\ndef down(n):\n    return down(n + 1)\ndown(0)",
        "nested = []\nfor _ in range(100_000):\n    nested = [nested]\nrepr(nested)",
    ),
    *_acts(
        "answers with no message",
        "answers",
        "scene.answer = <<'text'|3|b'bytes'|[]|{}|object()|lambda: 0|scene|NotImplemented|...>>",
        "scene.answer = (n for n in range(3))",
        "async def later():\n    return 3\nscene.answer = later()",
    ),
    *_acts(
        "answers with a wrong message",
        "answers",
        "scene.answer = scene.message",
        "from flwr.app import Message, RecordDict\nscene.answer = Message(RecordDict(), <<7|2**63|0|1>>, 'train')",
        "from flwr.app import Message, RecordDict\nscene.answer = Message(RecordDict(), reply_to=scene.message)",
        "from flwr.app import Error, Message\nscene.answer = Message(Error(<<0|3|99|-1>>, <<'told'|''|'e' * 10_000>>), "
        "reply_to=scene.message)",
        "from flwr.app import ConfigRecord, Message, RecordDict\n"
        "own = RecordDict({'c': ConfigRecord({'b': b'0' * <<10|1_000_000>>})})\n"
        "scene.answer = Message(own, reply_to=scene.message)",
        "from flwr.app import Message, MetricRecord, RecordDict\n"
        "scene.answer = Message(RecordDict({str(n): MetricRecord({str(n): n}) for n in range(<<2|1000>>)}), "
        "reply_to=scene.message)",
        "import copy; scene.answer = copy.deepcopy(scene.message)",
        flower=True,
    ),
    *_acts(
        "NaN or infinite arrays",
        "answers",
        "scene.arrays[<<0|-1>>][...] = float('<<nan|inf|-inf>>')",
        "scene.arrays = [array * float('<<nan|inf|1e308>>') for array in scene.arrays]",
        "scene.arrays[0].flat[0] = float('<<nan|inf>>')",
    ),
    *_acts(
        "NaN, infinite or odd metrics",
        "answers",
        "scene.metrics['<<loss|accuracy|train_loss|other>>'] = <<float('nan')|float('inf')|-1.0|1e308|[1.0]|0|[]>>",
        "scene.metrics['<<loss|accuracy>>'] = <<'text'|None|True|b'b'|{'a': 1}|2**70|1j>>",
        "scene.metrics['<<a b|loss\\n|\\udcff|\\x00|a,b|../x>>'] = 1.0",
        "scene.metrics.update({f'm{n}': float(n) for n in range(<<100|2000>>)})",
        "scene.metrics.clear()",
    ),
    *_acts(
        "a wrong number of samples",
        "answers",
        "scene.metrics['num-examples'] = <<0|-1|-100|2**40|2**80|0.5|1e300|True|[1]|'3'|None>>",
        "scene.metrics['num-examples'] = float('<<nan|inf|-inf>>')",
        "scene.metrics.pop('num-examples', None)",
    ),
    *_acts(
        "arrays of wrong shape, dtype or number",
        "answers",
        "scene.arrays = scene.arrays[:<<0|1|-1>>]",
        "scene.arrays = scene.arrays * <<2|10>>",
        "scene.arrays[0] = scene.arrays[0].astype('<<float16|float64|int8|bool|complex64|uint64|U8|object>>')",
        "scene.arrays[0] = scene.arrays[0].<<ravel()|reshape(1, -1)|sum()|T|mean(axis=0)|copy(order='F')>>",
        "scene.arrays[0] = scene.arrays[0][<<::2|::-1|:0|None>>]",
        "import numpy as np; scene.arrays[0] = np.<<zeros(0)|zeros(())|float32(3)|empty((0, 3))|zeros((2,) * 20)>>",
        "import numpy as np; scene.arrays[0] = np.broadcast_to(np.float32(1), scene.arrays[0].shape)",
        "scene.arrays[0] = <<None|'text'|3|[1, 2]|lambda: 0>>",
        "scene.arrays[0] = scene.arrays[0].astype('<<>f4|<f8|>i2>>')",
        "import numpy as np; scene.arrays[0] = np.ma.masked_array(scene.arrays[0], mask=True)",
        "import numpy as np; scene.arrays[0] = np.zeros(scene.arrays[0].shape, dtype=[('a', 'f4'), ('b', 'i4')])",
    ),
    *_acts(
        "huge answers",
        "answers",
        "import numpy as np; scene.arrays.append(np.zeros(<<1_000_000|4_000_000>>, np.float32))",
        "scene.metrics['m' * <<1000|100_000>>] = 1.0",
        "scene.metrics['long'] = [1.0] * 100_000",
    ),
    *_acts(
        "sleeps",
        "answers",
        "import time; time.sleep(<<0|1|3600|86400|1e6>>)",
        "from time import sleep; sleep(<<0.5|100>>)",
        "import time\nfor _ in range(100):\n    time.sleep(<<1|0.01>>)",
        flower=True,
    ),
    *_acts(
        "sleeps for a time that is none",
        "answers",
        "import time; time.sleep(<<-1|float('nan')|float('-inf')|'1'|None>>)",
        flower=True,
    ),
    *_acts(
        "sleeps for ever",
        "answers",
        "import time; time.sleep(<<1e18|float('inf')|1e300|2**62>>)",
        "import time\nfor _ in range(10):\n    time.sleep(1e200)",
        flower=True,
    ),
    *_acts(
        "waits for ever on this host",
        "endless",
        "import threading; threading.Event().wait()",
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "import os; ends = os.pipe()\ntry:\n    os.read(ends[0], 1)\nfinally:\n    [os.close(each) for each in ends]",
        "import queue; queue.Queue().get()",
        "import signal; signal.pause()",
        "import select; select.select([], [], [])",
        "import subprocess; subprocess.run(['sleep', '<<20|30>>'])",
    ),
    *_acts(
        "loops for ever",
        "endless",
        "while True:\n    <<pass|1 + 1|sum(range(100))|str(scene)>>",
        "import itertools\nfor _ in itertools.count():\n    pass",
        "def down(n):\n    while True:\n        yield n\nfor _ in down(0):\n    pass",
        "import re; re.match('(a+)+b', 'a' * 40)",
        "import asyncio\nasync def spin():\n    while True:\n        await asyncio.sleep(0)\nasyncio.run(spin())",
    ),
    *_acts(
        "loops for ever and catches every exception",
        "endless",
        """
        while True:
            try:
                <<pass|sum(range(1000))|scene.nothing|raise ValueError>>
            except<<| BaseException>>:
                <<pass|continue>>
        """,
        """
        while True:
            try:
                while True:
                    <<sum(range(100))|str(scene)>>
            except:
                <<pass|x = 1>>
        """,
        """
        def again():
            try:
                while True:
                    sum(range(100))
            finally:
                again()
        again()
        """,
    ),
    *_acts(
        "changes global random generators",
        "answers",
        "import random; random.seed(<<0|7|'text'>>)",
        "import numpy as np; np.random.seed(<<0|7>>)",
        "import torch; torch.manual_seed(<<0|7>>)",
        "import random; random.random(); random.setstate(random.Random(3).getstate())",
        "import numpy as np; np.random.rand(<<1|100>>)",
        "import torch; torch.rand(<<1|100>>)",
        "import torch; torch.default_generator.manual_seed(5)",
    ),
    *_acts(
        "changes settings of torch and NumPy",
        "silent",
        "import torch; torch.set_num_threads(<<1|2|4>>)",
        "import torch; torch.set_default_dtype(torch.<<float64|float16>>)",
    ),
    *_acts(
        "changes settings of torch and NumPy",
        "answers",  # a training after it in the same call has no gradients
        "import torch; torch.set_grad_enabled(False)",
    ),
    *_acts(
        "changes settings of torch and NumPy",
        "silent",
        "import torch; torch.use_deterministic_algorithms(True<<|, warn_only=True>>)",
        "import torch; torch.set_default_device('<<cpu|meta>>')",
        "import torch; torch.autograd.set_detect_anomaly(True)",
        "import torch; torch.set_flush_denormal(True)",
        "import torch; torch.backends.mkldnn.enabled = False",
        "import torch; torch.set_float32_matmul_precision('<<medium|high>>')",
    ),
    *_acts(
        "changes settings of torch and NumPy",
        "answers",  # a training after it in the same call has no gradients
        "import torch; torch._C._set_grad_enabled(False)",
        "import torch; torch.inference_mode().__enter__()",
        "import torch; torch.no_grad().__enter__()",
    ),
    *_acts(
        "changes settings of torch and NumPy",
        "silent",
        "import torch; torch.set_printoptions(precision=1)",
        "import numpy as np; np.seterr(all='<<raise|ignore>>')",
        "import numpy as np; np.set_printoptions(precision=1)",
    ),
    *_acts(
        "changes environment, folder and path",
        "silent",
        "import os; os.environ['<<OMP_NUM_THREADS|PATH|HOSTILE|PYTHONHASHSEED>>'] = '<<|7>>'",
        "import os; os.environ.clear()",
        "import os; os.chdir('<</|/tmp|..>>')",
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)",
        "import sys; sys.path.<<clear()|append('/nowhere')|reverse()>>",
        "import sys; sys.path = []",
        "import sys; sys.argv[:] = ['hostile']",
        "import os; os.umask(0o777)",
        "import os; os.putenv('HOSTILE', '1')",
        "import sys; sys.meta_path.insert(0, None) if False else sys.path_hooks.clear()",
        "import tempfile; tempfile.tempdir = '/nowhere'",
    ),
    *_acts(
        "changes settings of Python",
        "silent",
        "import sys; sys.setrecursionlimit(<<150|10_000>>)",
        "import warnings; warnings.<<simplefilter('error')|resetwarnings()|filters.clear()>>",
        "import warnings; warnings.showwarning = None",
        "import gc; gc.disable()",
        "import gc; gc.set_threshold(1)",
        "import gc; gc.<<freeze|collect>>()",
        "import threading; threading.excepthook = None",
        "import sys; sys.excepthook = <<None|lambda *told: None>>",
        "import sys; sys.unraisablehook = lambda *told: None",
        "import faulthandler; faulthandler.<<enable|disable>>()",
        "import faulthandler; faulthandler.dump_traceback_later(1000)",
        "import locale; locale.setlocale(locale.LC_ALL, 'C')",
        "import decimal; decimal.getcontext().prec = <<2|3>>",
        "import sys; sys.setswitchinterval(<<1e-6|10>>)",
        "import sys; sys.set_int_max_str_digits(<<640|0>>)",
        "import sys; sys.settrace(lambda *told: None)",
        "import sys; sys.setprofile(lambda *told: None)",
        "import threading; threading.settrace(lambda *told: None)",
        "import socket; socket.setdefaulttimeout(0.001)",
        "import threading; threading.stack_size(<<65536|1048576>>)",
        "import sys; sys.dont_write_bytecode = True",
        "import sys; sys.last_value = ValueError()",
    ),
    *_acts(
        "changes logging",
        "silent",
        "import logging; logging.basicConfig(level=<<0|10|50>>, force=True)",
        "import logging; logging.disable(<<0|50|1000>>)",
        "import logging; logging.getLogger().handlers.clear()",
        "import logging; logging.getLogger().setLevel(<<1|100>>)",
        "import logging; logging.shutdown()",
        "import logging; logging.raiseExceptions = False",
        "import logging; logging.getLogger('<<flwr|edgesim|edgesim.flower>>').setLevel(<<1|100>>)",
        "import logging; logging.getLogger('<<flwr|edgesim>>').addHandler(None)",
        "import logging; logging.setLoggerClass(type('Own', (logging.Logger,), {}))",
    ),
    *_acts(
        "changes signal handlers and timers",
        "silent",
        "import signal; signal.signal(signal.<<SIGALRM|SIGINT|SIGTERM|SIGHUP|SIGUSR1>>, signal.<<SIG_IGN|SIG_DFL>>)",
        "import signal; signal.signal(signal.<<SIGALRM|SIGINT|SIGTERM>>, lambda *told: None)",
        "import signal; signal.alarm(<<1|1000>>)",
        "import signal; signal.setitimer(signal.ITIMER_REAL, <<0.01|50>>)",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.<<SIGALRM|SIGINT|SIGTERM>>})",
        "import signal; signal.set_wakeup_fd(-1)",
    ),
    *_acts(
        "replaces or closes standard streams",
        "silent",
        "import sys; sys.<<stdout|stderr>> = <<None|3|open('/dev/null', 'w')>>",
        "import sys, io; sys.<<stdout|stderr>> = io.StringIO()",
        "import sys; sys.<<stdout|stderr>>.close()",
        "import sys; sys.__<<stdout|stderr>>__ = None",
        "import sys; sys.stdin.close()",
        "import os; os.write(<<1|2>>, b'raw\\n')",
        "print('<<lines\\n|\\x1b[2J|\\x00>>' * 100)",
        "import sys; print('told', file=sys.stderr)",
        "import sys; sys.displayhook = None",
    ),
    *_acts(
        "replaces functions of Python",
        "answers",
        "import time; time.<<sleep|time|monotonic|perf_counter>> = lambda *given: <<0|3|None>>",
        "import builtins; builtins.<<open|print|len|isinstance|sum|dict>> = None",
        "import builtins; del builtins.<<open|sorted|max>>",
        "import builtins; builtins.hostile = 3",
        "import os; os.<<replace|fsync|getpid|stat|open|environ>> = None",
        "import random; random.<<seed|getstate|setstate|random>> = None",
        "import <<json; json.dumps|pickle; pickle.dumps|hashlib; hashlib.sha256>> = None",
        "import threading; threading.<<Thread|current_thread|Event>> = None",
        "import signal; signal.<<signal|setitimer>> = None",
    ),
    *_acts(
        "replaces functions of NumPy and torch",
        "spoils",
        "import numpy as np; np.<<sum|mean|array|asarray|random>> = None",
        "import torch; torch.<<manual_seed|get_num_threads|is_grad_enabled|get_rng_state|tensor|save>> = None",
        "import torch; torch.Tensor.<<detach|numpy|add_>> = None",
        "import torch; torch.nn.functional.<<linear|cross_entropy>> = None",
    ),
    *_acts(
        "removes or replaces modules",
        "answers",
        "import sys; sys.modules.pop('<<json|random|edgesim|flwr|decimal>>', None)",
        "import sys; sys.modules['<<json|decimal|statistics>>'] = None",
        "import sys, types; sys.modules['<<client|server|edgesim.core.errors>>'] = types.ModuleType('own')",
    ),
    *_acts(
        "starts threads that go on",
        "silent",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(<<0.01|0.5>>,), daemon=<<True|False>>).start()",
        "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
        "import threading\nthreading.Timer(<<0.01|0.3>>, print, args=('late',)).start()",
        """
        import random, threading, time
        def disturb():
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                random.random()
                time.sleep(0.001)
        threading.Thread(target=disturb, daemon=True).start()
        """,
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(2).submit(pow, 2, 3)",
        "import threading\n[threading.Thread(target=lambda: None).start() for _ in range(<<5|50>>)]",
        "import atexit; atexit.register(lambda: 1 / 0)",
        "import weakref; weakref.finalize(scene, print, 'gone')",
    ),
    *_acts(
        "starts processes that go on",
        "silent",
        "import subprocess; subprocess.Popen(['sleep', '<<0.1|1>>'])",
        "import subprocess; subprocess.run(['<<true|false>>'])",
        "import os; os.system('<<true|exit 3|sleep 0.1 &>>')",
        "import os\npid = os.fork()\nif pid == 0:\n    os._exit(<<0|1>>)\n<<os.waitpid(pid, 0)|pass>>",
    ),
    *_acts(
        "writes files",
        "silent",
        "with open('<<hostile.txt|scenario.toml|.edgesim>>', 'a') as file:\n    file.write('x')",
        "import tempfile\nwith tempfile.NamedTemporaryFile('w', delete=<<True|False>>) as file:\n    file.write('x')",
        "import os, tempfile\nos.makedirs(os.path.join(tempfile.mkdtemp(), *'abcdefghij'))",
        "from pathlib import Path; Path('<<model.bin|out.log>>').write_bytes(b'0' * <<10|1_000_000>>)",
    ),
    *_acts(
        "changes files of the app",
        "answers",
        "from pathlib import Path; Path(__file__).<<touch()|chmod(0)>>",
        "from pathlib import Path\nPath(__file__).with_name('own.py').write_text('x = 3')\nimport own",
        "from pathlib import Path; Path(__file__).write_text('broken(')",
        "import shutil; from pathlib import Path; shutil.rmtree(Path(__file__).parent)",
    ),
    *_acts(
        "leaks memory and objects",
        "silent",
        "KEPT.append(bytearray(<<1|4>> << 20))",
        "KEPT.append(scene)",
        "import sys; KEPT.append(sys._getframe())",
        "ring = []; ring.append(ring); KEPT.append([ring] * 100_000)",
        "class Odd:\n    def __del__(self):\n        raise ValueError('in del')\nOdd()",
        "scene.itself = scene",
        "KEPT.extend(open('/dev/null') for _ in range(<<3|20>>))",
    ),
    *_acts(
        "asks for more memory than there is",
        "answers",
        "bytearray(1 << <<50|62>>)",
        "import numpy as np; np.zeros(1 << <<50|60>>)",
        "import torch; torch.zeros(1 << <<45|58>>)",
        "'x' * (1 << 60)",
        "[0] * (1 << 60)",
    ),
    *_acts(
        "changes the received message",
        "answers",
        "scene.message.content.clear()",
        "for record in list(scene.message.content.values()):\n    record.clear()",
        "scene.message.metadata.<<dst_node_id|ttl|group_id|message_type>> = <<3|None|-1|'x'>>",
        "scene.message.content['own'] = None",
        "vars(scene.message).clear()",
        "scene.message.__class__ = type('Own', (), {})",
        "scene.context.run_config['<<rounds|own>>'] = <<7|None|'x'>>",
        "scene.context.<<node_id|run_id|node_config|run_config>> = <<None|3|{}>>",
        flower=True,
    ),
    *_acts(
        "keeps odd state",
        "answers",
        "scene.context.state = <<None|3|{}|'text'>>",
        "scene.context.state['own'] = <<None|3|lambda: 0>>",
        "from flwr.app import ConfigRecord\nscene.context.state['own'] = ConfigRecord({'b': b'0' * <<10|2_000_000>>})",
        "from flwr.app import ConfigRecord\nscene.context.state[<<'own'|'\\udcff'|3|''>>] = ConfigRecord({'x': 1})",
        "from flwr.app import MetricRecord\nscene.context.state['n'] = MetricRecord({'n': <<1|float('nan')|2**80>>})",
        "vars(scene.context).clear()",
        flower=True,
    ),
    *_acts(
        "other machinery of Python",
        "silent",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0)\nasyncio.run(main())",
        "import asyncio; asyncio.set_event_loop(asyncio.new_event_loop())",
        "exec('import math\\nmath.sqrt(2)', {})",
        "import ctypes; ctypes.CDLL(None).getpid()",
        "import contextvars; contextvars.ContextVar('own').set(3)",
        "import sys; sys.addaudithook(lambda *told: None) if False else None",
        "import inspect; [frame.f_locals for frame in map(lambda each: each.frame, inspect.stack())]",
        "import sys; sys.setdlopenflags(sys.getdlopenflags())",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "import typing; typing.cast(int, 3)",
    ),
    *_acts(
        "ends its process",
        "kills",
        "import os; os._exit(<<0|1|3>>)",
        "import os, signal; os.kill(os.getpid(), signal.<<SIGKILL|SIGSEGV|SIGABRT>>)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
    ),
    *_acts(
        "closes file descriptors",
        "kills",
        "import os; os.closerange(3, <<64|1024>>)",
    ),
    *_acts(
        "loops for ever in C code or in locks",
        "kills",
        """
        import threading
        event = threading.Event()
        while True:
            try:
                event.wait(0.05)
            except BaseException:
                pass
        """,
        "import itertools; sum(itertools.repeat(<<0|1>>))",
        "import collections, itertools; collections.deque(itertools.repeat(0), maxlen=0)",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\nwhile True:\n    pass",
    ),
]

# How an act is called. Those of the second line change what an exception does.
_AROUND = {
    "plain": "{body}",
    "function": "def inner():\n{deeper}\ninner()",
    "generator": "def inner():\n{deeper}\n    yield\nlist(inner())",
    "class": "class Inner:\n    def __init__(self):\n{deepest}\nInner()",
    "finally": "try:\n{deeper}\nfinally:\n    scene.ended = True",
    "with": "import contextlib\nwith contextlib.suppress(ZeroDivisionError):\n{deeper}",
}
_AROUND_ERRORS = {
    "thread": "import threading\ndef inner():\n{deeper}\n"
    "thread = threading.Thread(target=inner)\nthread.start()\nthread.join(5)",
    "coroutine": "import asyncio\nasync def inner():\n{deeper}\nasyncio.run(inner())",
    "cleanup": "class Inner:\n    def __del__(self):\n{deepest}\nInner()",
    "again": "def inner():\n{deeper}\n"
    "try:\n    inner()\nexcept BaseException as error:\n    raise ValueError('again') from error",
}
_CHOICE = re.compile(r"<<((?:(?!<<|>>).)*)>>(?!>)", re.DOTALL)


def drawn(text: str, random: Random) -> str:
    """Return a text of the grammar with each choice drawn."""
    while found := _CHOICE.search(text):
        text = text[: found.start()] + random.choice(found.group(1).split("|")) + text[found.end() :]
    return text


def body_of(act: Act, random: Random) -> str:
    """Return the body of a function that does an act in some way."""
    ways = _AROUND | (_AROUND_ERRORS if act.effect == "answers" else {})
    way = ways[random.choice(["plain", "plain", *ways])]
    body = drawn(act.text, random)
    return way.format(body=body, deeper=indent(body, "    "), deepest=indent(body, " " * 8))


def kinds() -> Sequence[str]:
    """Return the rows of the table of verdicts, in order."""
    return list(dict.fromkeys(act.kind for act in (*HARMLESS, *ACTS)))
