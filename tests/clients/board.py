"""Drives a whole board with the official MCP client: a leader, two workers, every tool and resource they need.

    python board.py stdio PROTOCOL SPRAG DATA     each agent has its own `sprag mcp` on one data directory
    python board.py http PROTOCOL URL             all of them at one server, with the token in SPRAG_TOKEN
    python board.py relay PROTOCOL SPRAG URL DATA each agent has its own `sprag mcp --server URL`
    python board.py race PROTOCOL SPRAG DATA N M  N servers on one data directory claim M tasks, each once

PROTOCOL is `auto`, or `legacy` for agents that do not know its newest version.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


def connector(argv):
    """Makes a client of the kind that the arguments name."""
    kind, mode = argv[:2]
    if kind == "http":
        headers = {"authorization": "Bearer " + os.environ["SPRAG_TOKEN"]}
        transport = lambda: streamable_http_client(
            argv[2] + "/mcp", http_client=create_mcp_http_client(headers=headers)
        )
        return lambda: Client(transport(), mode=mode)
    args, env = ["mcp"], {}
    if kind == "relay":
        args += ["--server", argv[3]]
        env["SPRAG_DATA"] = argv[4]
    else:
        env["SPRAG_DATA"] = argv[3]
    server = StdioServerParameters(command=argv[2], args=args, env=env)
    return lambda: Client(stdio_client(server), mode=mode)


async def call(client, tool, **arguments):
    """What a tool answers; its refusals are errors here."""
    result = await client.call_tool(tool, arguments)
    told = json.loads(result.content[0].text)
    if result.is_error:
        raise Refused(told)
    return told


class Refused(Exception):
    """A tool said no, and what to do next."""

    def __init__(self, told):
        super().__init__(json.dumps(told))
        self.told = told


async def refused(client, tool, **arguments):
    """A call that must be refused, with a word for programs and what to do next."""
    try:
        answer = await call(client, tool, **arguments)
    except Refused as no:
        assert no.told["next"], no.told
        return no.told["error"]
    raise AssertionError(f"{tool} was not refused: {answer}")


async def whole_board(connect, cancels):
    async with AsyncExitStack() as stack:
        leader, ada, bob = [await stack.enter_async_context(connect()) for _ in range(3)]
        tools = {tool.name: tool for tool in (await leader.list_tools()).tools}
        for name in ("board_create", "task_claim", "task_complete", "run_explain", "gate_answer"):
            assert tools[name].description and tools[name].input_schema["type"] == "object", name

        await call(leader, "board_create", name="ship", goal="Ship it", plan="Write, then publish.")
        assert await refused(leader, "board_create", name="ship") == "refused"
        added = await call(leader, "task_add", board="ship", tasks=[
            {"key": "write", "text": "Write the notes", "acceptance": ["they are short"]},
            {"key": "check", "text": "Check the links", "priority": 3},
            {"key": "publish", "text": "Publish", "needs": ["write", "check"]},
        ])
        assert [task["task"] for task in added["tasks"]] == [1, 2, 3], added
        assert await refused(leader, "task_add", board="ship", tasks=[{"text": "x", "needs": ["nobody"]}]) == "invalid"
        assert await refused(leader, "task_add", board="ship", tasks=[{"words": "x"}]) == "invalid"
        assert await refused(leader, "board_status", board="nothing") == "no_board"

        await call(ada, "worker_register", name="ada", board="ship")
        plan = await call(ada, "plan_get", board="ship")
        assert plan["goal"] == "Ship it", plan
        first = await call(ada, "task_claim", name="ada", board="ship", request=1)
        again = await call(ada, "task_claim", name="ada", board="ship", request=1)
        assert first["token"] == again["token"], "the answer to a repeated claim is the same task"
        assert first["key"] == "check", "the one with the higher priority comes first"
        second = await call(bob, "task_claim", name="bob", board="ship")
        assert second["key"] == "write" and second["with"]["acceptance"] == ["they are short"], second
        none = await call(bob, "task_claim", name="bob", board="ship")
        assert none["token"] is None and none["why"] == "waiting_for_needs" and none["retry_after_s"] > 0, none

        assert await refused(bob, "task_complete", token="nonsense") == "no_token"
        forged = first["token"].split(".")
        forged[3] = "99"
        assert await refused(bob, "task_complete", token=".".join(forged)) == "no_token"
        await call(ada, "task_heartbeat", token=first["token"], lease_s=60)
        await call(ada, "note_add", board="ship", note={"author": "ada", "tag": "links", "text": "two are dead"})
        report = {"summary": "checked", "outputs": {"dead": 2}}
        told = await call(ada, "task_complete", token=first["token"], result=report)
        # The answer may have been lost: the same report gets the same answer, another one does not take its place.
        assert await call(ada, "task_complete", token=first["token"], result=report) == told
        assert await refused(ada, "task_complete", token=first["token"]) == "reported"
        assert await refused(ada, "task_fail", token=first["token"], reason="no") == "reported"

        # Released, claimed by the other one, failed, tried again by the leader.
        await call(bob, "task_release", token=second["token"])
        taken = await call(ada, "task_claim", name="ada", board="ship")
        assert taken["key"] == "write", taken
        await call(ada, "task_fail", token=taken["token"], reason="no pen")
        shown = await call(leader, "task_get", board="ship", task="publish")
        assert shown["status"] == "skipped", shown
        await call(leader, "task_retry", board="ship", task="write")
        taken = await call(bob, "task_claim", name="bob", board="ship")
        assert "no pen" in taken["feedback"] and taken["attempt"] == 2, taken
        await call(bob, "task_complete", token=taken["token"], result={"summary": "written", "files_created": ["NOTES.md"]})

        # A call that its client gives up takes no task with it. (Over HTTP, older clients keep the request open.)
        if cancels:
            given_up = asyncio.create_task(call(ada, "task_claim", name="ada", queues=["spare"], wait_s=20))
            await asyncio.sleep(0.2)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
        await call(leader, "task_add", board="ship", tasks=[{"key": "spare", "text": "Spare", "queue": "spare"}])
        spare = await call(bob, "task_claim", name="bob", queues=["spare"], wait_s=20)
        assert spare["token"], spare
        await call(bob, "task_complete", token=spare["token"], result={"summary": "spared"})

        waiting = asyncio.create_task(call(ada, "task_claim", name="ada", board="ship", wait_s=20))
        last = await asyncio.wait_for(waiting, 30)
        assert last["key"] == "publish" and last["needs"]["check"]["result"]["outputs"] == {"dead": 2}, last
        notes = await call(bob, "note_list", board="ship", tag="links")
        assert [note["text"] for note in notes["notes"]] == ["two are dead"], notes
        await call(ada, "task_complete", token=last["token"], result={"summary": "out"})

        resources = {str(resource.uri) for resource in (await leader.list_resources()).resources}
        assert "sprag://board/ship/tasks" in resources, resources
        read = await leader.read_resource("sprag://board/ship/plan")
        assert json.loads(read.contents[0].text)["goal"] == "Ship it"
        closed = await call(leader, "board_close", board="ship")
        assert closed["status"] == "completed" and closed["tasks"]["done"] == 4, closed
        report = await call(leader, "board_report", board="ship")
        assert [task["result"]["summary"] for task in report["tasks"]] == ["written", "checked", "out", "spared"], report
        ended = await call(ada, "task_claim", name="ada", board="ship")
        assert ended["why"] == "closed", ended


async def race(connect, servers, tasks):
    """Every task is claimed once, by whichever of many servers."""
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(connect()) for _ in range(servers)]
        leader = agents[0]
        await call(leader, "board_create", name="race")
        for at in range(0, tasks, 100):
            batch = [{"text": f"task {at + n}"} for n in range(min(100, tasks - at))]
            await call(leader, "task_add", board="race", tasks=batch)
        claimed = []

        async def work(agent, name):
            while True:
                task = await call(agent, "task_claim", name=name, board="race")
                if task["token"] is None:
                    return
                claimed.append(task["task"])
                await call(agent, "task_complete", token=task["token"])

        await asyncio.wait_for(asyncio.gather(*(work(agent, f"a{n}") for n, agent in enumerate(agents))), 240)
        assert sorted(claimed) == list(range(1, tasks + 1)), "each once"
        closed = await call(leader, "board_close", board="race")
        assert closed["status"] == "completed" and closed["tasks"]["done"] == tasks, closed


async def main(argv):
    connect = connector(argv)
    if argv[0] == "race":
        await race(connect, int(argv[4]), int(argv[5]))
    else:
        await asyncio.wait_for(whole_board(connect, argv[:2] != ["http", "legacy"]), 120)
    print("ok")


asyncio.run(main(sys.argv[1:]))
