# The sidecar's image: a virtual environment in a slim Python, run as nobody.
#
#   docker build -t noetl-chain:0.1.0 .
#
# PYTHON_IMAGE: another base.  Wheels in ./wheels are preferred; with PIP_NO_INDEX=1 nothing else
# is asked.
ARG PYTHON_IMAGE=python:3.13.9-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_NO_INDEX
WORKDIR /src
COPY constraints.txt wheel[s]/* /wheels/
COPY pyproject.toml README.md constraints.txt ./
COPY sidecar sidecar
COPY migrations migrations
COPY docs/openapi.yaml docs/openapi.yaml
RUN python3 -m venv /opt/noetl-chain \
 && /opt/noetl-chain/bin/pip install --no-cache-dir --disable-pip-version-check \
      --find-links /wheels --constraint constraints.txt '.[gossip]' \
 && find /opt/noetl-chain -name __pycache__ -prune -exec rm -rf {} + \
 && /opt/noetl-chain/bin/python -m compileall -q /opt/noetl-chain/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="noetl-chain" \
      org.opencontainers.image.description="Shadow comparator beside NoETL: how often store and log disagreed, and how much was compared"
RUN groupadd --system --gid 10001 noetl-chain \
 && useradd --system --uid 10001 --gid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin noetl-chain \
 && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/noetl-chain /opt/noetl-chain
ENV PATH=/opt/noetl-chain/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NOETL_CHAIN_LOG_FORMAT=json
USER 10001:10001
WORKDIR /
EXPOSE 9109
# Of `run`; /livez says whether every loop has ticked lately.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9109/livez', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["noetl-chain"]
CMD ["run"]
