# syntax=docker/dockerfile:1.9
# The embedded server on a CPU: KServe v2 over HTTP, OpenVINO or ONNX Runtime behind it. No torch.
#   docker build -f docker/serve.Dockerfile -t quietformer-serve .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
WORKDIR /build
COPY pyproject.toml constraints.txt docker/requirements.py ./
RUN python requirements.py cpu serve > requirements.txt \
    && python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt -r requirements.txt

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="quietformer serve" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /opt/venv /opt/venv
COPY deploy /opt/quietformer/deploy
COPY quietformer /opt/quietformer/quietformer
COPY docker/run_step.py /opt/quietformer/docker/
RUN install -d -m 1777 /srv/quietformer /srv/quietformer/runs /cache
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/quietformer PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/cache
USER 1000:1000
WORKDIR /srv/quietformer
VOLUME /srv/quietformer/runs /cache
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["python", "/opt/quietformer/docker/run_step.py", "serve"]
CMD ["--help"]
