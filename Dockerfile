# Cutaway's gateway with TorchServe, on the CPU. docs/deployment.md says how to build and run it.
#
# BASE is any glibc system with Python 3.10 or newer and its venv module. EXTRAS are Cutaway's own (pyproject.toml).
ARG BASE=python:3.11-slim-bookworm

# All that is not ours, Java in a wheel included. A change of our code leaves this stage, and torch in it, as it is.
FROM ${BASE} AS dependencies
ARG EXTRAS=server
# Where pip looks. Only RUN sees these, and the image does not keep them.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# pip installs what a package needs only together with the package: an empty one comes, and goes. dumb-init is the first
# process: the kernel keeps from that one signals it has not asked for, which Python takes seconds to, and leaves it what
# TorchServe's workers are when TorchServe was killed.
RUN mkdir -p service/cutaway handlers \
    && touch README.md LICENSE service/cutaway/__init__.py handlers/inspection_handler.py \
    && python3 -m venv /opt/cutaway \
    && /opt/cutaway/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" dumb-init==1.2.5.post1 \
    && /opt/cutaway/bin/pip uninstall --yes cutaway

FROM ${BASE} AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
WORKDIR /build
RUN python3 -m venv /build/tools
COPY pyproject.toml README.md LICENSE ./
COPY handlers handlers
COPY service service
RUN tools/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM ${BASE}
LABEL org.opencontainers.image.title="Cutaway" \
      org.opencontainers.image.description="PyTorch models served with their insides visible, and with proof" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can see that it is not root; an entry of its own, because torch asks for its name.
RUN groupadd --gid 10001 cutaway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin cutaway \
    && mkdir /models \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/log/cutaway
COPY --from=dependencies /opt/cutaway /opt/cutaway
COPY --from=wheel /dist /tmp/dist
RUN /opt/cutaway/bin/pip install --no-cache-dir --no-index --no-deps /tmp/dist/*.whl && rm -r /tmp/dist
COPY --chmod=0755 deploy/health.py /opt/cutaway/bin/cutaway-health

# Inside, every address is meant: which of them the world reaches is decided by who runs the image.
ENV PATH=/opt/cutaway/bin:${PATH} \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    GRPC_VERBOSITY=NONE \
    CUTAWAY_ADDRESS=0.0.0.0:50051 \
    CUTAWAY_LOG_DIR=/var/log/cutaway
USER 10001:10001
WORKDIR /tmp
# Besides /tmp, which may be in memory, these are all that the image asks of its surroundings; it only writes the log.
VOLUME ["/models", "/var/log/cutaway"]
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 CMD ["cutaway-health"]
ENTRYPOINT ["dumb-init", "--single-child", "--", "cutaway"]
CMD ["serve", "--model-store", "/models"]
